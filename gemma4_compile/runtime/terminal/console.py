"""Output of `gemma4-chat`: answers on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator as Steps
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from tqdm import tqdm

from gemma4_compile.errors import printable, printable_text
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.chat.chat import Reply
from gemma4_compile.runtime.engine.prompt_reading import PromptProgress
from gemma4_compile.runtime.package.hub_snapshot import (
    forgetting_damage,
    hub_name,
    hub_package_of,
    needed_files,
)
from gemma4_compile.runtime.package.integrity import ByteCount, Check
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import Wish, check_download
from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.sampling.sampling import TokenChooser
from gemma4_compile.system.terminals import shows_styles

_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"
_SOON_S = 0.5  # what is done by then needs no bar
_LONG_S = 2.0  # what takes longer is reported


class Answerer(Protocol):
    """Receiver of a typed text: a `Chat` or a `TextCompletion`."""

    last_reply: Reply | None

    def events(
        self, text: str, sampler: TokenChooser, *, max_tokens: int | None = None
    ) -> Steps[Event | PromptProgress, None, None]:
        """Yield the reply's parts as they come."""


class _Count:
    """Bytes that are done of so many, as a bar where it is shown."""

    def __init__(self, text: str, *, shown: bool) -> None:
        self.total = 0
        self._bar = tqdm(
            desc=printable(text),
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            leave=False,
            disable=not shown,
            delay=_SOON_S,
        )

    def __call__(self, done: int, total: int) -> None:
        self.total = self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class Console:
    """Shows a conversation to a person, and leaves stdout to the answers for scripts."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Prepare; `quiet` leaves out progress and speed, but no errors and no reasoning."""
        self._quiet = quiet
        self._styled = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and shows_styles()

    def note(self, text: str) -> None:
        """Show something that is no answer."""
        if not self._quiet:
            print(printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def checking(self, package: Path) -> Iterator[ByteCount]:
        """Show how much of a package's files is hashed, and at the end how long it took, if long.

        Nothing is shown of a package that is known already.
        """
        begin = time.perf_counter()
        with self._counting(f"checking {_name(package)}") as count:
            yield count
        seconds = time.perf_counter() - begin
        if count.total and seconds > _LONG_S:
            size = f"{count.total / 1e6:,.1f} MB"
            self.note(
                f"checked {_name(package)} ({size}) in {seconds:.1f} s; not again until it changes"
            )

    def locate(
        self, given: Path, *, drafts: int | None, pages: bool = True, wish: Wish | None = None
    ) -> Path:
        """The directory of a package: the one of that name, or what the hub has, fetched.

        Parameters
        ----------
        drafts : guesses of a round; with 0 the drafter's files are not fetched
        pages : libraries for browsers are wanted
        wish : what will be loaded here; a package that would not fit is not fetched. None where
            nothing is loaded, or that is not known
        """
        named = hub_name(given)
        if named is None:
            return given
        from gemma4_compile.runtime.package.hub_package import (
            fetch_package,  # loads the hub's client
        )

        def admit(directory: Path, provenance: Provenance) -> None:
            if wish is not None:
                check_download(named[0], directory, provenance, wish)

        wanted = partial(needed_files, drafter=drafts != 0, pages=pages)
        begin = time.perf_counter()
        with self._counting(f"fetching {printable(named[0])}") as count:
            found = fetch_package(*named, wanted, count, admit)
        if count.total:
            seconds, size = time.perf_counter() - begin, f"{count.total / 1e6:,.1f} MB"
            self.note(f"fetched {found.name} ({size}) in {seconds:.1f} s")
        self.note(f"{found.name} is at commit {found.commit}")
        return found.directory

    def open(
        self, package: Path, check: Check, *, drafts: int | None, device: str | None = None
    ) -> Package:
        """Open a package, whose files are checked meanwhile, and tell why a device is passed over.

        Parameters
        ----------
        drafts : guesses of a round; with 0 the drafter's files may be missing
        device : name of the library or device; by default the best that runs here
        """
        with forgetting_damage(package), self.checking(package) as progress:
            opened = Package.open(
                package, check=check, progress=progress, drafter=drafts != 0, device=device
            )
        for notice in opened.notices:
            self.note(notice)
        return opened

    @contextmanager
    def loading(self, package: Path, target: str) -> Iterator[ByteCount]:
        """Show how much of a package's weights is loaded, and at the end how long it took."""
        begin = time.perf_counter()
        with self._counting(f"loading {_name(package)} ({target})") as count:
            yield count
        seconds = time.perf_counter() - begin
        size = f"{count.total / 1e6:,.1f} MB of weights"
        self.note(f"loaded {_name(package)} ({target}, {size}) in {seconds:.1f} s")

    def _counting(self, text: str) -> closing[_Count]:
        return closing(_Count(text, shown=not self._quiet and sys.stderr.isatty()))

    def answer(
        self, chat: Answerer, text: str, chooser: TokenChooser, max_tokens: int | None
    ) -> None:
        """Ask, and show the reply as it comes: reasoning on stderr, the answer on stdout.

        Whatever ends the reply, the line ends, and its speed is shown.
        """
        before = chat.last_reply
        thinking = False
        with closing(chat.events(text, chooser, max_tokens=max_tokens)) as events:
            try:
                for event in events:
                    if not isinstance(event, PromptProgress):
                        thinking = self._show(event, thinking)
            finally:
                if thinking:
                    self._end_reasoning()
                events.close()  # the conversation has the reply from here on
                print(flush=True)
                if chat.last_reply is not before and chat.last_reply is not None:
                    self.note(speed(chat.last_reply))

    def _show(self, event: Event, thinking: bool) -> bool:
        """Show a part; return whether reasoning is open."""
        if isinstance(event, ReasoningDelta):
            style = _DIM if self._styled and not thinking else ""
            text = self._shown(event.text, sys.stderr)
            print(f"{style}{text}", end="", file=sys.stderr, flush=True)
            return True
        if thinking:
            self._end_reasoning()
        if isinstance(event, TextDelta):
            print(self._shown(event.text, sys.stdout), end="", flush=True)
        else:
            call = f"[{event.name} {event.arguments_json()}]"
            print(self._shown(call, sys.stdout), end="", flush=True)
        return False

    def _shown(self, text: str, stream: TextIO) -> str:
        """Text of a model, without the characters that would steer a terminal.

        A file or another program gets the text as it is.
        """
        return printable_text(text) if stream.isatty() else text

    def _end_reasoning(self) -> None:
        print(_NORMAL if self._styled else "", file=sys.stderr, flush=True)


def _name(path: Path) -> str:
    """A path on one line; a package of the hub by its id."""
    of_hub = hub_package_of(path)
    if of_hub is not None:
        return printable(str(of_hub))
    return printable(str(path)).replace("\n", "\\n")


def speed(reply: Reply) -> str:
    """One line about a reply's tokens and time, in brackets."""
    count = len(reply.token_ids)
    parts = [f"{count} token{'' if count == 1 else 's'}"]
    if count:
        parts.append(f"first after {reply.first_token_s:.2f} s")
    if reply.tokens_per_s:
        parts.append(f"then {reply.tokens_per_s:.1f} tok/s")
    if reply.tokens_per_step:
        parts.append(f"{reply.tokens_per_step:.2f} tokens a step")
    if reply.finish_reason == "length":
        parts.append("ended by --max-tokens")
    if reply.finish_reason == "interrupted":
        parts.append("stopped")
    prompt = f"prompt of {reply.prompt_tokens}, {reply.reused_tokens} of them known"
    return f"[{', '.join(parts)}; {prompt}]"

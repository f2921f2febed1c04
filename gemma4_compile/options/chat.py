"""The options of `gemma4-chat` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_compile.errors import UsageError
from gemma4_compile.media.sizes import BUDGETS
from gemma4_compile.options.command import (
    PLAIN,
    Command,
    CommandOptions,
    Group,
    argument,
    given,
    option,
    several,
    switch,
)
from gemma4_compile.options.prefixes import (
    check_prefixes,
    parse_size,
    prefix_cache_option,
    prefix_memory_option,
)
from gemma4_compile.options.process import non_empty, path
from gemma4_compile.options.sampling_ranges import SamplingValueError, read_sampling

CHECKS = ("once", "always", "off")
"""When a package's files are hashed: `runtime.integrity.Check`."""
AUTO = "auto"
"""As many drafts as pay, and as many experts on the GPU as it has room for."""
MAX_DRAFTS = 8
"""Drafts of a step, at most: the libraries of packages with a drafter take so many."""
ON_GPU, ON_HOST = PLACES = ("gpu", "host")
"""Where the table of per-layer embeddings can be, or all experts."""
DIAGNOSIS_FILE = Path("gemma4-diagnosis.txt")
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?", re.ASCII)
_SAMPLING = ("temperature", "top_p", "top_k")
_OF_A_CONVERSATION = ("system", "thinking", "literal_specials", "json_schema", "prefix_cache")
_OF_A_QUESTION = ("prompt", "prompt_file", "raw")
_INSTEAD = ("bench", "profile", "tune", "diagnose")
_QUESTION = Group(is_exclusive=True)
_MEDIA = Group("pictures and sound", "of the first question; for packages that take them")
_SAMPLES = Group("sampling", "defaults are the package's own")
_TOOLS = Group("instead of a conversation")


class _Attach(argparse.Action):
    """Keeps files of all kinds in the order in which they were given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        del parser
        assert option_string is not None, "these are no positional arguments"
        kind = str(self.const)
        namespace.attachments = [
            *getattr(namespace, "attachments", ()),
            (kind, Path(str(values))),
        ]


def parse_drafts(text: str) -> int | None:
    """A number of drafts, None for AUTO; ArgumentTypeError for anything else."""
    if text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected {AUTO} or a number from 0 to {MAX_DRAFTS}, found {text[:40]!r}"
        ) from None


def parse_experts(text: str) -> float | None:
    """A share of the experts on the device, None for AUTO; ArgumentTypeError for anything else."""
    named = {AUTO: None, ON_GPU: 1.0, ON_HOST: 0.0}
    if text in named:
        return named[text]
    number = text.removesuffix("%")
    if number != text and _NUMBER.fullmatch(number) and float(number) <= 100:
        return float(number) / 100
    raise argparse.ArgumentTypeError(
        f"expected {ON_GPU}, {ON_HOST}, {AUTO} or a share from 0% to 100%, found {text[:40]!r}"
    )


def parse_ple(text: str) -> str | None:
    """One of PLACES, None for AUTO; ArgumentTypeError for anything else."""
    if text == AUTO:
        return None
    if text in PLACES:
        return text
    raise argparse.ArgumentTypeError(f"expected {ON_GPU}, {ON_HOST} or {AUTO}, found {text[:40]!r}")


PACKAGE_HELP = "the package's directory, or its id on the hub: owner/name, owner/name@REVISION"


def package_argument() -> Path:
    """The package that is run."""
    return argument("DIR_OR_ID", PACKAGE_HELP, type=path)


def context_option(group: Group = PLAIN) -> int | None:
    """Tokens of a conversation; None for the package's own."""
    return group.option(None, "--context-length N", "tokens to make room for", type=int)


def literal_specials_switch(group: Group = PLAIN) -> bool:
    """Whether control tokens in messages are text."""
    return group.switch(
        "--literal-specials",
        "take control tokens that a message spells out, such as <|turn>, as text",
    )


def draft_option(group: Group = PLAIN) -> int | None:
    """Drafts of a step; None for as many as pay."""
    return group.option(
        None,
        "--draft N",
        "tokens that the package's drafter drafts ahead in every step, up to "
        f"{MAX_DRAFTS}; 0: none; {AUTO}: as many as pay (default)",
        type=parse_drafts,
    )


def ple_option(group: Group = PLAIN) -> str | None:
    """Where the table of per-layer embeddings is; None for the device where there is room."""
    return group.option(
        None,
        "--ple WHERE",
        f"keep the table of per-layer embeddings (E2B, E4B) on the device ({ON_GPU}), or on the "
        f"host in its file, from where each token's row is fetched ({ON_HOST}); {AUTO}: on the "
        "device where it has room (default)",
        type=parse_ple,
    )


def experts_option(group: Group = PLAIN) -> float | None:
    """Share of the experts in the GPU's memory; None for all that it has room for."""
    return group.option(
        None,
        "--experts WHERE",
        "where the experts of a mixture lie: gpu, host (its memory, from which the GPU reads what "
        f"a token needs), a share on the GPU such as 50%%, or {AUTO}: on the GPU as far as it has "
        "room (default)",
        type=parse_experts,
    )


def expert_cache_option(group: Group = PLAIN) -> int | None:
    """Bytes of the GPU's memory for experts of the host's that are read most; None by room."""
    return group.option(
        None,
        "--expert-cache SIZE",
        "of the experts in the host's memory, keep those that are read most in so much of the "
        "GPU's (2GB, 512MiB, 0; default: a part of its room where not all fit)",
        type=parse_size,
    )


def device_option(further: str = "", group: Group = PLAIN) -> str | None:
    """Name of a library or device; None for what --tune kept, or the best."""
    return group.option(
        None,
        "--device NAME",
        "run this library of the package, or the one for this device: cuda, metal, cpu"
        f"{further} (default: what --tune kept, or the first of these that works here)",
        type=non_empty,
    )


def check_option() -> str:
    """When the package's files are hashed."""
    return option(
        CHECKS[0],
        "--check",
        "hash the package's files and compare: once and whenever one changed, always, or "
        "not at all (default: %(default)s)",
        choices=CHECKS,
    )


def check_lengths(context_length: int | None, draft: int | None) -> None:
    """Raise UsageError for lengths that no package has."""
    check_positive("--context-length", context_length, "leave it out for the package's own")
    if draft is not None and not 0 <= draft <= MAX_DRAFTS:
        raise UsageError(
            f"--draft: expected 0 to {MAX_DRAFTS}, found {draft}",
            hint="leave it out for as many as pay",
        )


def check_positive(flag: str, value: int | None, hint: str) -> None:
    """Raise UsageError for a number below 1; None is none."""
    if value is not None and value < 1:
        raise UsageError(f"{flag}: expected at least 1, found {value}", hint=hint)


def empty_question() -> UsageError:
    """Error for a question without words."""
    return UsageError("the question is empty", hint="give a text with --prompt or --prompt-file")


def _attachment(kind: str, help: str) -> tuple[tuple[str, Path], ...]:
    return _MEDIA.option(
        (), f"--{kind}", help, action=_Attach, type=non_empty, const=kind, metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class ChatOptions(CommandOptions):
    """The options of `gemma4-chat`, which fit together."""

    package: Path = package_argument()
    prompt: str | None = _QUESTION.option(None, "--prompt TEXT", "ask this one question and leave")
    prompt_file: str | None = _QUESTION.option(
        None,
        "--prompt-file FILE",
        "ask what this file holds and leave; `-` is stdin",
        type=non_empty,
    )
    raw: bool = switch(
        "--raw", "go on with a text as it is, without a chat template: for base models"
    )
    system: str | None = option(None, "--system TEXT", "system message")
    attachments: tuple[tuple[str, Path], ...] = several(
        (),
        _attachment("image", "show a picture; may be given again"),
        _attachment("audio", "play a sound; as well"),
        _attachment("video", "show a video; may be given again"),
    )
    image_tokens: int | None = _MEDIA.option(
        None,
        "--image-tokens N",
        f"most tokens of a picture, of {', '.join(map(str, BUDGETS))} (default: 280, or what "
        "the package has room for)",
        choices=BUDGETS,
    )
    thinking: bool = switch("--thinking", "let the model think first")
    literal_specials: bool = literal_specials_switch()
    json_schema: Path | None = option(
        None, "--json-schema FILE", "hold answers to this JSON schema"
    )
    max_tokens: int | None = option(
        None, "--max-tokens N", "most tokens of a reply (default: no limit)"
    )
    temperature: float | None = _SAMPLES.option(None, "--temperature T", "0 is greedy")
    top_p: float | None = _SAMPLES.option(
        None, "--top-p P", "draw from this share of the probability"
    )
    top_k: int | None = _SAMPLES.option(None, "--top-k N", "draw from this many tokens; 0: all")
    seed: int | None = _SAMPLES.option(None, "--seed N", "repeat the same draws")
    greedy: bool = _SAMPLES.switch("--greedy", "always the most probable token")
    context_length: int | None = context_option()
    draft: int | None = draft_option()
    ple: str | None = ple_option()
    experts: float | None = experts_option()
    expert_cache: int | None = expert_cache_option()
    prefix_memory: int | None = prefix_memory_option()
    prefix_cache: Path | None = prefix_cache_option()
    device: str | None = device_option()
    quiet: bool = switch("--quiet", "no progress, no speed")
    no_history: bool = switch(
        "--no-history", "neither read nor keep the lines that are typed in a terminal"
    )
    check: str = check_option()
    bench: bool = _TOOLS.switch(
        "--bench", "measure speed, its share of what the GPU could do, and memory"
    )
    profile: bool = _TOOLS.switch(
        "--profile",
        "show which kernels the time of a prompt and of a token goes to; after --bench, too",
    )
    tune: bool = _TOOLS.switch(
        "--tune",
        "time those of the package's libraries that run here, and keep the fastest right one "
        "for later runs",
    )
    diagnose: Path | None = _TOOLS.option(
        None,
        "--diagnose FILE",
        "write what a report of a fault needs: versions, device, a test of every kernel "
        f"(default: {DIAGNOSIS_FILE})",
        nargs="?",
        const=DIAGNOSIS_FILE,
    )

    @property
    def sampling(self) -> dict[str, Any]:
        """The package's sampling values that others are given for."""
        values = {name: getattr(self, name) for name in _SAMPLING}
        return {name: value for name, value in values.items() if value is not None}

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot be, and for options that exclude each other."""
        check_positive("--max-tokens", self.max_tokens, "leave it out for no limit")
        check_lengths(self.context_length, self.draft)
        check_prefixes(self.prefix_cache, self.prefix_memory)
        self._check_sampling()
        conversation = given(self, _OF_A_CONVERSATION)
        conversation += [f"--{kind}" for kind, _ in self.attachments]
        instead = given(self, _INSTEAD)
        if self.bench and self.profile:  # which go together
            instead.remove("--profile")
        ignored = instead[1:] + given(self, _OF_A_QUESTION) + conversation
        if instead and ignored:
            raise UsageError(
                f"{instead[0]} stands instead of a conversation: {', '.join(ignored)} cannot be "
                "with it",
                hint=f"leave out {instead[0]}, or {ignored[0]}",
            )
        if self.tune and self.device is not None:
            raise UsageError(
                "--tune tries all of the package's libraries, and --device names one",
                hint="leave out --device, or time that one with --bench",
            )
        if self.raw and conversation:
            raise UsageError(
                "--raw goes on with a text and has no messages: "
                f"{', '.join(conversation)} cannot be with it",
                hint=f"leave out --raw, or {conversation[0]}",
            )
        if self.prompt is not None and not self.prompt.strip():
            raise empty_question()

    def _check_sampling(self) -> None:
        for name, value in self.sampling.items():
            try:
                read_sampling(name, value)
            except SamplingValueError as error:
                raise UsageError(
                    f"--{name.replace('_', '-')}: {error}",
                    hint="leave it out for the package's own",
                ) from error
        if self.greedy and self.temperature:
            raise UsageError(
                "--greedy and --temperature exclude each other", hint="give one of them"
            )
        if self.seed is not None and self.seed < 0:
            raise UsageError(
                f"--seed: expected 0 or more, found {self.seed}", hint="leave it out for any"
            )


COMMAND = Command(
    "gemma4-chat",
    "Chat with a package that gemma4-compile made for this computer. "
    "Answers go to stdout, everything else to stderr.",
    ChatOptions,
    surplus='a question goes behind --prompt, in quotes: --prompt "Who are you?"',
)

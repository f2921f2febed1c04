"""A session in the terminal: messages and commands in turn, until the user leaves."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from gemma4_compile.errors import Gemma4CompileError, UsageError, is_panic, printable_text
from gemma4_compile.media.inputs import KINDS, load
from gemma4_compile.options.given_text import utf8
from gemma4_compile.options.process import DEBUG_HINT, Terminated, report
from gemma4_compile.runtime.chat import transcript
from gemma4_compile.runtime.chat.chat import Chat
from gemma4_compile.runtime.chat.completion import TextCompletion
from gemma4_compile.runtime.engine.sequence import ContextFullError
from gemma4_compile.runtime.sampling.sampling import TokenChooser
from gemma4_compile.runtime.terminal.console import Console
from gemma4_compile.runtime.terminal.lines import BlockDropped, Lines, PipedLines, Typed, read_typed

HELP = """\
/clear            starts a new conversation, with the same system message
/forget           drops the oldest question and answer
/image FILE       shows a picture with the next message; /audio FILE, /video FILE likewise
/detach           takes back what the next message was to show
/system TEXT      sets the system message; /system shows it, /system clear removes it
/save FILE        writes the conversation as JSON; /save --force FILE replaces a file
/load FILE        goes on with a conversation that /save wrote
/help             shows this
/exit             leaves, as Ctrl-D does
\"""               opens a message of several lines, and ends it; pasted lines are one message
Ctrl-C            stops an answer; at the prompt, twice, it leaves"""
RAW_HELP = """\
/help             shows this
/exit             leaves, as Ctrl-D does
\"""               opens a text of several lines, and ends it; pasted lines are one text
Ctrl-C            stops a text; at the prompt, twice, it leaves
every other line is a text that the model goes on with; none knows of those before"""
GREETING = 'type a message, or /help for commands; """ opens a message of several lines'
RAW_GREETING = 'type a text to go on with, or /help; """ opens a text of several lines'
_FULL_HINT = "/forget drops the oldest question and answer, /clear starts a new conversation"
_RAW_FULL_HINT = "give a shorter text, or compile with a larger --context"
_COMMANDS = (
    *("clear", "forget", "image", "audio", "video", "detach"),
    *("system", "save", "load", "help", "exit"),
)
_RAW_COMMANDS = ("help", "exit")
_LASTING = ("clear", "forget", "system", "load")  # they change all questions that follow
_WITHOUT_EFFECT = ("save", "help", "exit")
_FORCE = "--force"
_EXAMPLES = {"/image": "cat.jpg", "/audio": "hello.wav", "/video": "walk.mp4"}


class FailedLinesError(Gemma4CompileError):
    """Lines of a pipe could not be done; each was reported."""


class Dialogue:
    """Asks with the command line's options."""

    def __init__(
        self,
        answerer: Chat | TextCompletion,
        console: Console,
        new_chooser: Callable[[], TokenChooser],
        limit: int | None,
        image_tokens: int | None = None,
    ) -> None:
        """Join them.

        Parameters
        ----------
        new_chooser : makes what chooses the tokens of one reply
        limit : most tokens of a reply
        image_tokens : most tokens of a picture; None: as the package has it
        """
        self._answerer, self._console = answerer, console
        self._new_chooser, self._limit = new_chooser, limit
        self._image_tokens = image_tokens
        self._raw = isinstance(answerer, TextCompletion)
        self._piped = False
        self._failed = 0
        self._undone: dict[str, str] = {}  # commands of a pipe, by word: what questions wait for

    def attach(self, kind: str, path: Path) -> None:
        """Show a file with the next message; UsageError or MediaError where that cannot be."""
        assert isinstance(self._answerer, Chat), "texts alone have no messages"
        chat = self._answerer
        medium = load(kind, path, chat.media, budget=self._image_tokens)
        chat.attach(medium)
        rows = sum(each.rows for each in chat.attached)
        self._console.note(f"{path}: {medium.rows} tokens, {rows} of the next message by now")

    def ask(self, text: str) -> None:
        """Show the reply to one message; what ends it is raised."""
        self._console.answer(self._answerer, text, self._new_chooser(), self._limit)

    def converse(self, lines: Lines) -> None:
        """Take messages and commands until the input ends; KeyboardInterrupt leaves, too.

        Nobody sees the errors of a pipe's lines while there is time to mend them: a question that
        a command before it was to prepare is not asked where that failed.

        Raises
        ------
        FailedLinesError
            At the end, if a line of a pipe could not be done.
        """
        self._piped = isinstance(lines, PipedLines)
        self._console.note(RAW_GREETING if self._raw else GREETING)
        self._take(lines)
        if self._piped and self._failed:
            lines_failed = "1 line" if self._failed == 1 else f"{self._failed} lines"
            raise FailedLinesError(
                f"{lines_failed} of stdin could not be done",
                hint="the errors before this one say why",
            )

    def _take(self, lines: Lines) -> None:
        interrupted = False
        while True:
            try:
                typed = read_typed(lines)
            except EOFError:
                return
            except Terminated:
                raise
            except KeyboardInterrupt as pressed:
                if self._piped or (interrupted and not isinstance(pressed, BlockDropped)):
                    raise
                interrupted = True
                self._console.note("(Ctrl-C again leaves, as /exit and Ctrl-D do)")
                continue
            except UsageError as error:
                self._fail(str(error), error.hint or HELP)
                if self._piped:
                    return
                continue
            interrupted = False
            stripped = typed.text.strip()
            if stripped and self._survive(typed):
                return

    def _survive(self, typed: Typed) -> bool:
        """Act on what was typed; what ends an answer or a command does not end the conversation.

        Returns
        -------
        bool
            Whether it leaves.
        """
        stripped = typed.text.strip()
        is_command = typed.command and _is_command(stripped)
        try:
            if is_command:
                return self._command(stripped)
            self._check_prepared()
            text = utf8("this text" if self._raw else "this question", typed.text)
            self.ask(text if self._raw else text.strip())
            return False
        except ContextFullError as error:
            self._fail(str(error), self._full_hint())
        except Gemma4CompileError as error:
            self._fail(str(error), error.hint or GREETING)
        except Terminated:
            raise
        except KeyboardInterrupt:
            self._console.note("(stopped)")
            return False
        except OSError:  # as of stdout, which nobody reads any more
            raise
        except BaseException as error:  # a panic of native code is no Exception
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            self._fail(f"internal error: {type(error).__name__}: {error}", DEBUG_HINT)
        if self._piped:
            self._unprepare(stripped if is_command else None)
        return False

    def _fail(self, message: str, hint: str) -> None:
        self._failed += 1
        report(message, hint)

    def _check_prepared(self) -> None:
        """UsageError for a question of a pipe that a command before it was to prepare."""
        if self._undone:
            line = next(iter(self._undone.values()))
            raise UsageError(
                f"this question is not asked: before it, `{line[:80]}` failed",
                hint="mend that line, or leave it out",
            )

    def _unprepare(self, command: str | None) -> None:
        """Note a command that failed; or a question, after which no other shows its media."""
        if command is None:
            if isinstance(self._answerer, Chat):
                self._answerer.attached = []
            self._undone = {word: line for word, line in self._undone.items() if word in _LASTING}
            return
        word = command[1:].split(None, 1)[0]
        if word not in _WITHOUT_EFFECT:
            self._undone.setdefault(word, command)

    def _prepare(self, word: str) -> None:
        """Note a command that was done: it stands for those before it that failed."""
        if word == "load":
            self._undone.clear()
        elif word == "clear":
            self._undone = {key: line for key, line in self._undone.items() if key == "system"}
        elif word in _LASTING:
            self._undone.pop(word, None)
        elif word == "detach":
            self._undone = {key: line for key, line in self._undone.items() if key in _LASTING}

    def _full_hint(self) -> str:
        if not isinstance(self._answerer, Chat):
            return _RAW_FULL_HINT
        attached = "/detach takes back what it was to show, " if self._answerer.attached else ""
        return attached + _FULL_HINT

    def _command(self, line: str) -> bool:
        """Carry a command out; return whether it leaves."""
        word, *others = line[1:].split(None, 1)
        rest = utf8(f"/{word}", "".join(others).strip())
        known = _RAW_COMMANDS if self._raw else _COMMANDS
        if word not in known:
            shown = ", ".join(f"/{name}" for name in known)
            raise UsageError(
                f"unknown command /{word}",
                hint=f'{shown}; to send this as it is, put it between """ and """',
            )
        if word in ("exit", "help", "clear", "forget", "detach") and rest:
            raise UsageError(f"/{word} takes nothing after it", hint=f"type /{word} alone")
        if word == "exit":
            return True
        if word == "help":
            self._say(RAW_HELP if self._raw else HELP)
        elif isinstance(self._answerer, Chat):
            self._chat_command(self._answerer, word, rest)
        self._prepare(word)
        return False

    def _chat_command(self, chat: Chat, word: str, rest: str) -> None:
        if word == "clear":
            chat.clear()
            self._console.note("a new conversation")
        elif word == "forget":
            forgotten = chat.forget_oldest()
            self._console.note("forgotten" if forgotten else "there is nothing to forget")
        elif word in KINDS:
            self.attach(word, _path(f"/{word}", rest))
        elif word == "detach":
            chat.attached = []
            self._console.note("the next message shows nothing")
        elif word == "system":
            self._system(chat, rest)
        elif word == "save":
            self._save(chat, rest)
        else:
            self._load(chat, rest)

    def _system(self, chat: Chat, text: str) -> None:
        if text:
            chat.system = None if text == "clear" else text
        said = "there is no system message" if chat.system is None else f"system: {chat.system}"
        self._say(said)

    def _save(self, chat: Chat, rest: str) -> None:
        option, *others = rest.split(None, 1)[:2] or [""]
        name = "".join(others) if option == _FORCE else rest
        if name.startswith("--"):
            raise UsageError(
                f"/save: unknown option {name.split()[0]}",
                hint=f"/save {_FORCE} FILE replaces a file; a file of this name is ./{name}",
            )
        path = _path("/save", name)
        if not chat.messages:
            raise UsageError("there is nothing to save", hint="say something first")
        transcript.save(path, chat.messages, replace=option == _FORCE)
        shown = any(message.media for message in chat.messages)
        without = ", without what they show" if shown else ""
        self._console.note(f"saved {_count(chat)} as {path}{without}")

    def _load(self, chat: Chat, rest: str) -> None:
        chat.restore(transcript.load(_path("/load", rest)))
        self._console.note(f"loaded {_count(chat)}; the conversation before is gone")

    def _say(self, text: str) -> None:
        """Show what was asked for, `--quiet` or not."""
        print(printable_text(text), file=sys.stderr, flush=True)


def _is_command(line: str) -> bool:
    """Return whether a line begins with a slash and a word; a path such as /etc/x is none."""
    return line.startswith("/") and line[1:2].isalpha() and line[1:].split(None, 1)[0].isalpha()


def _path(command: str, text: str) -> Path:
    text = _unquoted(text.strip())
    if not text:
        example = _EXAMPLES.get(command, "chat.json")
        raise UsageError(f"{command} needs the name of a file", hint=f"such as {command} {example}")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{command}: {error}", hint="give the whole path") from error


def _unquoted(text: str) -> str:
    """Return the name of a file that a terminal pasted: in quotes, or with backslashes."""
    if os.path.lexists(text):
        return text
    try:
        words = shlex.split(text)
    except ValueError:  # an apostrophe of the name
        return text
    return words[0] if len(words) == 1 else text


def _count(chat: Chat) -> str:
    count = len(chat.messages)
    return f"{count} message{'' if count == 1 else 's'}"

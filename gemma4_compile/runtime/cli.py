"""`gemma4-chat DIR`: talk to a compiled package in the terminal, or ask it one question."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.process import Parser, peak_memory_bytes, report, run_command
from gemma4_compile.runtime.bench import measure, table
from gemma4_compile.runtime.chat import Chat
from gemma4_compile.runtime.console import Console
from gemma4_compile.runtime.diagnose import DEFAULT_FILE, diagnose
from gemma4_compile.runtime.engine import ContextFullError, Engine
from gemma4_compile.runtime.generation import TokenChooser
from gemma4_compile.runtime.grammar import Grammars, JsonGrammar
from gemma4_compile.runtime.integrity import Check
from gemma4_compile.runtime.package import Package, read_provenance
from gemma4_compile.runtime.sampling import make_sampler

with contextlib.suppress(ImportError):  # not on Windows
    import readline  # noqa: F401  arrow keys and history for input()

_COMMANDS = (
    "/clear starts a new conversation, /forget drops its oldest question and answer, "
    "/exit or end of file leaves, Ctrl-C stops an answer"
)
_FULL_HINT = "/forget drops the oldest question and answer, /clear starts a new conversation"
_SCHEMA_HINT = 'give a file like {"type": "object", "properties": {"answer": {"type": "string"}}}'
_STDIN = "-"


def _parser() -> Parser:
    parser = Parser(
        prog="gemma4-chat",
        description="Chat with a package that gemma4-compile made for this computer. "
        "Answers go to stdout, everything else to stderr.",
    )
    parser.add_argument("package", type=Path, metavar="DIR", help="the package's directory")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--prompt", metavar="TEXT", help="ask this one question and leave")
    asked.add_argument(
        "--prompt-file", metavar="FILE", help="ask what this file holds and leave; `-` is stdin"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--thinking", action="store_true", help="let the model think first")
    parser.add_argument(
        "--literal-specials",
        action="store_true",
        help="take control tokens that a message spells out, such as <|turn>, as text",
    )
    parser.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="hold answers to this JSON schema"
    )
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="most tokens of a reply (default: no limit)"
    )
    sampling = parser.add_argument_group("sampling", "defaults are the package's own")
    sampling.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    sampling.add_argument(
        "--top-p", type=float, metavar="P", help="draw from this share of the probability"
    )
    sampling.add_argument(
        "--top-k", type=int, metavar="N", help="draw from this many tokens; 0: all"
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="repeat the same draws")
    sampling.add_argument("--greedy", action="store_true", help="always the most probable token")
    parser.add_argument("--context-length", type=int, metavar="N", help="tokens to make room for")
    parser.add_argument("--quiet", action="store_true", help="no progress, no speed")
    parser.add_argument(
        "--check",
        choices=[check.value for check in Check],
        default=Check.ONCE.value,
        help="hash the package's files and compare: once and whenever one changed, always, or "
        "not at all (default: %(default)s)",
    )
    tools = parser.add_argument_group("instead of a conversation")
    tools.add_argument("--bench", action="store_true", help="measure speed and memory")
    tools.add_argument(
        "--diagnose",
        nargs="?",
        type=Path,
        const=DEFAULT_FILE,
        metavar="FILE",
        help="write what a report of a fault needs: versions, device, a test of every kernel "
        "(default: %(const)s)",
    )
    parser.add_common()
    return parser


def _sampler(arguments: argparse.Namespace, package: Package) -> TokenChooser:
    defaults = package.sampling_defaults()
    if arguments.greedy:
        if arguments.temperature:
            raise UsageError(
                "--greedy and --temperature exclude each other", hint="give one of them"
            )
        return make_sampler(replace(defaults, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0))
    if arguments.seed is not None and arguments.seed < 0:
        raise UsageError(
            f"--seed: expected 0 or more, found {arguments.seed}", hint="leave it out for any"
        )
    named = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p")}
    given = {name: value for name, value in named.items() if value is not None}
    return make_sampler(replace(defaults, **given), arguments.seed)


def _question(arguments: argparse.Namespace) -> str | None:
    """The one question of the command line, or None for a conversation."""
    if arguments.prompt_file is None:
        text: str | None = arguments.prompt
    elif arguments.prompt_file == _STDIN:
        text = sys.stdin.read()
    else:
        text = _read_text("--prompt-file", Path(arguments.prompt_file))
    if text is not None:
        text = _utf8("the question", text)
    if text is not None and not text.strip():
        raise UsageError("the question is empty", hint="give a text with --prompt or --prompt-file")
    return text


def _speak_utf8() -> None:
    """Read and write UTF-8 whatever the locale; bytes that are none are found by `_utf8`."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def _utf8(what: str, text: str) -> str:
    """Text from arguments or stdin, where bytes that the locale does not know are surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f"{what} is not UTF-8: {error}", hint="save the text as UTF-8") from error


def _read_text(option: str, path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(
            f"{option}: cannot read `{path}`: {error.strerror}", hint="check the file's name"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{option}: `{path}` is not UTF-8: {error}", hint="save the text as UTF-8"
        ) from error


def _grammar(path: Path, package: Package) -> JsonGrammar:
    try:
        schema = json.loads(_read_text("--json-schema", path))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--json-schema: `{path}` is not JSON: {error}", hint=_SCHEMA_HINT
        ) from error
    if not isinstance(schema, dict):
        raise UsageError(
            f"--json-schema: `{path}`: expected a JSON object, found {schema!r:.60}",
            hint=_SCHEMA_HINT,
        )
    tokenizer, config = package.load_tokenizer(), package.chat_config
    return Grammars(tokenizer, config.vocab_size, sorted(package.stop_token_ids)).compile(schema)


class _Asker:
    """Asks with the command line's options."""

    def __init__(
        self,
        chat: Chat,
        console: Console,
        new_chooser: Callable[[], TokenChooser],
        limit: int | None,
    ) -> None:
        self.chat, self.console = chat, console
        self._new_chooser, self._limit = new_chooser, limit

    def ask(self, text: str) -> None:
        self.console.answer(self.chat, text, self._new_chooser(), self._limit)

    def converse(self) -> None:
        """Take questions and commands from stdin until its end."""
        self.console.note(_COMMANDS)
        while True:
            try:
                text = input("> " if sys.stdin.isatty() else "").strip()
            except (EOFError, KeyboardInterrupt) as leaving:
                if sys.stdin.isatty():
                    self.console.note("")  # the shell goes on on a line of its own
                if isinstance(leaving, KeyboardInterrupt):
                    raise
                return
            if text == "/exit":
                return
            if text == "/help":
                self.console.note(_COMMANDS)
            elif text == "/clear":
                self.chat.clear()
            elif text == "/forget":
                forgotten = self.chat.forget_oldest()
                self.console.note("forgotten" if forgotten else "there is nothing to forget")
            elif text.startswith("/") and text[1:].isalpha():
                report(f"unknown command {text}", _COMMANDS)
            elif text:
                self._survive(text)

    def _survive(self, text: str) -> None:
        """Ask; what ends an answer does not end the conversation."""
        try:
            self.ask(_utf8("this question", text))
        except UsageError as error:
            report(str(error), error.hint or _COMMANDS)
        except ContextFullError as error:
            report(str(error), _FULL_HINT)
        except KeyboardInterrupt:
            self.console.note("(stopped)")


def _bench(arguments: argparse.Namespace, package: Package, console: Console) -> None:
    """Print a table of speeds; stdout has nothing else."""
    with console.loading(arguments.package, package.target) as progress:
        engine = Engine(package, context_length=arguments.context_length, progress=progress)
    measurements = []
    for measurement in measure(engine, engine.vocab_size):
        console.note(f"{measurement.context} tokens: done")
        measurements.append(measurement)
    print(table(measurements))
    peak = peak_memory_bytes()
    if peak is not None:
        print(f"peak memory of the process: {peak / 2**20:,.0f} MiB")


def _diagnose(arguments: argparse.Namespace) -> None:
    console = Console(quiet=arguments.quiet)
    if not arguments.package.is_dir():
        read_provenance(arguments.package)  # which says what it is; there is nothing to diagnose
    outcome = diagnose(arguments.package, arguments.diagnose, console.note)
    print(arguments.diagnose)
    if outcome.faults:
        raise ArtifactError(
            f"{outcome.faults} faults; `{arguments.diagnose}` says which",
            hint="send that file with your report",
        )
    console.note(f"{outcome.kernels} kernels answer as their plain forms; no faults")


def _run(arguments: argparse.Namespace) -> None:
    if arguments.max_tokens is not None and arguments.max_tokens < 1:
        raise UsageError(
            f"--max-tokens: expected at least 1, found {arguments.max_tokens}",
            hint="leave it out for no limit",
        )
    if arguments.diagnose is not None:
        _diagnose(arguments)
        return
    console = Console(quiet=arguments.quiet)
    with console.checking(arguments.package) as progress:
        package = Package.open(arguments.package, check=Check(arguments.check), progress=progress)
    if arguments.bench:
        _bench(arguments, package, console)
        return
    sampler = _sampler(arguments, package)
    question = _question(arguments)
    system = None if arguments.system is None else _utf8("--system", arguments.system)
    grammar = None if arguments.json_schema is None else _grammar(arguments.json_schema, package)
    with console.loading(arguments.package, package.target) as progress:
        engine = Engine(package, context_length=arguments.context_length, progress=progress)
        chat = Chat(
            engine,
            package,
            system=system,
            thinking=arguments.thinking,
            literal_specials=arguments.literal_specials,
        )

    def new_chooser() -> TokenChooser:
        if grammar is None:
            return sampler
        return grammar.constrain(sampler, thinking=arguments.thinking)

    asker = _Asker(chat, console, new_chooser, arguments.max_tokens)
    if question is None:
        asker.converse()
    else:
        asker.ask(question)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0, 1 failed, 2 usage, 130 left by Ctrl-C."""
    _speak_utf8()
    return run_command(_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())

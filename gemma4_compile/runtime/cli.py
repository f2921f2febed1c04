"""`gemma4-chat DIR`: talk to a compiled package in the terminal, or ask it one question."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gemma4_compile import __version__
from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.chat import Chat
from gemma4_compile.runtime.engine import ContextFullError
from gemma4_compile.runtime.package import Package
from gemma4_compile.runtime.sampling import Sampler, SamplingOptions

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_COMMANDS = "/clear starts a new conversation, /exit or end of file leaves"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemma4-chat", description="Chat with a package that gemma4-compile made for `cpu`."
    )
    parser.add_argument("package", type=Path, metavar="DIR", help="the package's directory")
    parser.add_argument("--prompt", help="ask this one question, print the reply and leave")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--max-tokens", type=int, help="most tokens of a reply (default: no limit)")
    sampling = parser.add_argument_group("sampling", "defaults are the package's own")
    sampling.add_argument("--temperature", type=float, help="0 is greedy")
    sampling.add_argument("--top-p", type=float, help="draw from this share of the probability")
    sampling.add_argument("--top-k", type=int, help="draw from this many tokens; 0: all")
    sampling.add_argument("--seed", type=int, help="repeat the same draws")
    sampling.add_argument("--greedy", action="store_true", help="always the most probable token")
    parser.add_argument("--context-length", type=int, help="tokens to make room for")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _sampler(arguments: argparse.Namespace, package: Package) -> Sampler:
    defaults = package.sampling_defaults()
    if arguments.greedy:
        if arguments.temperature:
            raise UsageError(
                "--greedy and --temperature exclude each other", hint="give one of them"
            )
        return Sampler(SamplingOptions(temperature=0.0))
    named = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p")}
    given = {name: value for name, value in named.items() if value is not None}
    return Sampler(replace(defaults, **given), arguments.seed)


def _answer(chat: Chat, text: str, sampler: Sampler, max_tokens: int | None) -> None:
    try:
        for piece in chat.stream(text, sampler, max_tokens=max_tokens):
            print(piece, end="", flush=True)
    finally:
        print(flush=True)


def _converse(chat: Chat, sampler: Sampler, max_tokens: int | None) -> None:
    print(_COMMANDS, file=sys.stderr)
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if text == "/exit":
            return
        if text == "/clear":
            chat.clear()
        elif text:
            try:
                _answer(chat, text, sampler, max_tokens)
            except ContextFullError as error:
                print(f"error: {error}\nhint: /clear starts a new conversation", file=sys.stderr)
            except KeyboardInterrupt:
                print("(stopped)", file=sys.stderr)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.max_tokens is not None and arguments.max_tokens < 1:
        raise UsageError(f"--max-tokens: expected at least 1, found {arguments.max_tokens}")
    package = Package.open(arguments.package)
    sampler = _sampler(arguments, package)
    chat = Chat.open(
        arguments.package, system=arguments.system, context_length=arguments.context_length
    )
    if arguments.prompt is None:
        _converse(chat, sampler, arguments.max_tokens)
    else:
        _answer(chat, arguments.prompt, sampler, arguments.max_tokens)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0, 1 (failed), 2 (usage)."""
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except Gemma4CompileError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

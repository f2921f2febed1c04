"""The arguments of `gemma4-chat` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.media.sizes import BUDGETS
from gemma4_compile.options.process import Options, Parser, non_empty, path, run_command
from gemma4_compile.options.sampling_ranges import SamplingValueError, read_sampling

CHECKS = ("once", "always", "off")
"""When a package's files are hashed: `runtime.integrity.Check`."""
AUTO = "auto"
"""As many guesses as pay."""
MAX_DRAFTS = 8
"""Guesses of a step, at most: the libraries of packages with a drafter take so many."""
DIAGNOSIS_FILE = Path("gemma4-diagnosis.txt")
_SAMPLING = ("temperature", "top_p", "top_k")
_OF_A_CONVERSATION = ("system", "thinking", "literal_specials", "json_schema")
_OF_A_QUESTION = ("prompt", "prompt_file", "raw")
_INSTEAD = ("bench", "profile", "tune", "diagnose")


def make_parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="gemma4-chat",
        description="Chat with a package that gemma4-compile made for this computer. "
        "Answers go to stdout, everything else to stderr.",
    )
    parser.add_argument(
        "package",
        type=path,
        metavar="DIR_OR_ID",
        help="the package's directory, or its id on the hub: owner/name, owner/name@REVISION",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--prompt", metavar="TEXT", help="ask this one question and leave")
    asked.add_argument(
        "--prompt-file",
        type=non_empty,
        metavar="FILE",
        help="ask what this file holds and leave; `-` is stdin",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="go on with a text as it is, without a chat template: for base models",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    _add_media(parser)
    parser.add_argument("--thinking", action="store_true", help="let the model think first")
    add_literal_specials(parser)
    parser.add_argument(
        "--json-schema", type=path, metavar="FILE", help="hold answers to this JSON schema"
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
    add_draft(parser)
    add_device(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress, no speed")
    parser.add_argument(
        "--no-history",
        action="store_true",
        help="neither read nor keep the lines that are typed in a terminal",
    )
    add_check(parser)
    tools = parser.add_argument_group("instead of a conversation")
    tools.add_argument("--bench", action="store_true", help="measure speed and memory")
    tools.add_argument(
        "--profile",
        action="store_true",
        help="show which kernels the time of a prompt and of a token goes to; after --bench, too",
    )
    tools.add_argument(
        "--tune",
        action="store_true",
        help="time those of the package's libraries that run here, and keep the fastest right one "
        "for later runs",
    )
    tools.add_argument(
        "--diagnose",
        nargs="?",
        type=path,
        const=DIAGNOSIS_FILE,
        metavar="FILE",
        help="write what a report of a fault needs: versions, device, a test of every kernel "
        "(default: %(const)s)",
    )
    parser.add_common()
    return parser


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
        namespace.attachments = [*namespace.attachments, (kind, Path(str(values)))]


def _add_media(parser: Parser) -> None:
    media = parser.add_argument_group(
        "pictures and sound", "of the first question; for packages that take them"
    )
    for kind, what in (("image", "a picture"), ("audio", "a sound"), ("video", "a video")):
        media.add_argument(
            f"--{kind}",
            action=_Attach,
            type=non_empty,
            const=kind,
            dest="attachments",
            default=[],
            metavar="FILE",
            help=f"show {what}; may be given again" if kind != "audio" else "play a sound; as well",
        )
    media.add_argument(
        "--image-tokens",
        type=int,
        choices=BUDGETS,
        metavar="N",
        help=f"most tokens of a picture, of {', '.join(map(str, BUDGETS))} (default: 280, or what "
        "the package has room for)",
    )


def add_literal_specials(options: Options) -> None:
    """Add the option of both `gemma4-chat` and `gemma4-serve`."""
    options.add_argument(
        "--literal-specials",
        action="store_true",
        help="take control tokens that a message spells out, such as <|turn>, as text",
    )


def parse_drafts(text: str) -> int | None:
    """A number of guesses, None for AUTO; ArgumentTypeError for anything else."""
    if text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected {AUTO} or a number from 0 to {MAX_DRAFTS}, found {text[:40]!r}"
        ) from None


def add_draft(options: Options) -> None:
    """Add the option of both `gemma4-chat` and `gemma4-serve`."""
    options.add_argument(
        "--draft",
        type=parse_drafts,
        metavar="N",
        help="tokens that the package's drafter guesses ahead in every step, up to "
        f"{MAX_DRAFTS}; 0: none; {AUTO}: as many as pay (default)",
    )


def add_device(options: Options, further: str = "") -> None:
    """Add the option of both `gemma4-chat` and `gemma4-serve`; the latter knows further names."""
    options.add_argument(
        "--device",
        type=non_empty,
        metavar="NAME",
        help="run this library of the package, or the one for this device: cuda, metal, cpu"
        f"{further} (default: what --tune kept, or the first of these that works here)",
    )


def check_draft(arguments: argparse.Namespace) -> None:
    """Raise UsageError for a number of guesses that no package takes."""
    if arguments.draft is not None and not 0 <= arguments.draft <= MAX_DRAFTS:
        raise UsageError(
            f"--draft: expected 0 to {MAX_DRAFTS}, found {arguments.draft}",
            hint="leave it out for as many as pay",
        )


def add_check(options: Options) -> None:
    """Add the option of both `gemma4-chat` and `gemma4-serve`."""
    options.add_argument(
        "--check",
        choices=CHECKS,
        default=CHECKS[0],
        help="hash the package's files and compare: once and whenever one changed, always, or "
        "not at all (default: %(default)s)",
    )


def check_positive(arguments: argparse.Namespace, name: str, hint: str) -> None:
    """Raise UsageError for an argument below 1; None is none."""
    value = getattr(arguments, name)
    if value is not None and value < 1:
        raise UsageError(f"{option(name)}: expected at least 1, found {value}", hint=hint)


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for values that cannot be, and for options that exclude each other."""
    check_positive(arguments, "max_tokens", "leave it out for no limit")
    check_positive(arguments, "context_length", "leave it out for the package's own")
    check_draft(arguments)
    for name in _SAMPLING:
        _check_sampling(name, getattr(arguments, name))
    if arguments.greedy and arguments.temperature:
        raise UsageError("--greedy and --temperature exclude each other", hint="give one of them")
    if arguments.seed is not None and arguments.seed < 0:
        raise UsageError(
            f"--seed: expected 0 or more, found {arguments.seed}", hint="leave it out for any"
        )
    given = _given(arguments, _OF_A_CONVERSATION)
    given += [f"--{kind}" for kind, _ in arguments.attachments]
    instead = _given(arguments, _INSTEAD)
    if arguments.bench and arguments.profile:  # which go together
        instead.remove(option("profile"))
    ignored = instead[1:] + _given(arguments, _OF_A_QUESTION) + given
    if instead and ignored:
        raise UsageError(
            f"{instead[0]} stands instead of a conversation: {', '.join(ignored)} cannot be with "
            "it",
            hint=f"leave out {instead[0]}, or {ignored[0]}",
        )
    if arguments.tune and arguments.device is not None:
        raise UsageError(
            "--tune tries all of the package's libraries, and --device names one",
            hint="leave out --device, or time that one with --bench",
        )
    if arguments.raw and given:
        raise UsageError(
            f"--raw goes on with a text and has no messages: {', '.join(given)} cannot be with it",
            hint=f"leave out --raw, or {given[0]}",
        )
    if arguments.prompt is not None and not arguments.prompt.strip():
        raise empty_question()


def _given(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of some options that are given, as they are written."""
    return [option(name) for name in names if getattr(arguments, name) not in (None, False)]


def empty_question() -> UsageError:
    """Error for a question without words."""
    return UsageError("the question is empty", hint="give a text with --prompt or --prompt-file")


def option(name: str) -> str:
    """Return how the option of an argument is written."""
    return f"--{name.replace('_', '-')}"


def _check_sampling(name: str, value: float | None) -> None:
    if value is None:
        return
    try:
        read_sampling(name, value)
    except SamplingValueError as error:
        raise UsageError(
            f"{option(name)}: {error}", hint="leave it out for the package's own"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the arguments alone; returns the exit status: 0 or 2, wrong usage."""
    return run_command(make_parser(), check, argv)

"""The arguments of `gemma4-verify` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.options.process import Parser, non_empty, path, run_command

DEFAULT_STEPS = 64
DEFAULT_TEXT_TOKENS = 8000
FIT_TEXT_TOKENS = 1024
"""Of --fit-bits, which runs a text in a form for each part of the model."""
LEAST_BITS = 4.5  # of a weight in a group of 32 with a scale
CHAT, DOCUMENT, CODE, SCRIPT = "chat", "document", "code", "script"
TEXTS = (CHAT, DOCUMENT, CODE, SCRIPT)
"""Texts that ship: a conversation, a long one, programs, languages in other scripts."""
NO_TEXTS = "none"
AUTO, CPU, CUDA = "auto", "cpu", "cuda"
DEVICES = (AUTO, CPU, CUDA)


_OF_PACKAGES = ("reference", "drafter", "library")
"""Options that a comparison of recipes does not have."""


def make_parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="gemma4-verify",
        description="Compare a package with transformers in float32, and write numerics.json and "
        "numerics.svg into it (numerics-NAME of a --library that is not the main one); or, with "
        "--compare-recipes, compare recipes on a checkpoint, and with --fit-bits choose one. Exit "
        "status: 0 within the thresholds, 1 not, 2 wrong usage.",
    )
    parser.add_argument(
        "package",
        type=path,
        metavar="DIR",
        help="the package's directory; of --compare-recipes and --fit-bits a checkpoint: hub id, "
        "directory, or `tiny`",
    )
    parser.add_argument(
        "--reference",
        type=non_empty,
        metavar="MODEL",
        help="the checkpoint the package was made from: hub id, directory, GGUF file, or `tiny`",
    )
    parser.add_argument(
        "--library",
        type=non_empty,
        metavar="NAME",
        help="which of the package's libraries is compared, one for browsers on WebGPU in Node, a "
        "native one on its device (default: the main one, the first of provenance.json)",
    )
    parser.add_argument(
        "--compare-recipes",
        type=_names,
        metavar="LIST",
        help="recipes with commas, as q4f16,q8f16: bytes, and divergence from float32 by text, of "
        "each, without making a package; of a recipe file q4f16+FILE",
    )
    parser.add_argument(
        "--fit-bits",
        type=_bits,
        metavar="BITS",
        help="choose which parts of a checkpoint's decoder have 4 bits and which have 8 by what "
        "they lose, as 4.6 stored bits a weight; --output writes a file for --recipe",
    )
    parser.add_argument(
        "--revision", type=non_empty, metavar="R", help="branch, tag or commit on the hub"
    )
    parser.add_argument(
        "--drafter",
        type=non_empty,
        metavar="ID_OR_DIR",
        help="the package's drafter: hub id or directory (default: the hub id that the package "
        "names, and `tiny`'s own)",
    )
    parser.add_argument(
        "--tokenizer",
        type=non_empty,
        metavar="ID_OR_DIR",
        help="of --compare-recipes and --fit-bits on a model in GGUF: the hub id or directory "
        "of the checkpoint that it was made from, for its tokenizer and chat template (default: "
        "those of the file)",
    )
    parser.add_argument(
        "--adapter",
        type=non_empty,
        action="append",
        default=[],
        metavar="ID_OR_DIR",
        help="an adapter that the package was made with, as gemma4-compile takes it; several in "
        "order (default: the hub ids that the package names)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=DEFAULT_STEPS,
        metavar="N",
        help="tokens decoded from the start, and again after the long prompt "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--text",
        type=path,
        metavar="FILE",
        help="another text than the one that ships; with --compare-recipes and --fit-bits one more "
        "text",
    )
    parser.add_argument(
        "--texts",
        type=_names,
        default=TEXTS,
        metavar="LIST",
        help=f"which of the texts by form are run, with commas: {', '.join(TEXTS)} (default: all), "
        f"or {NO_TEXTS}",
    )
    parser.add_argument(
        "--text-tokens",
        type=int,
        metavar="N",
        help=f"most tokens of each of these texts (default: {DEFAULT_TEXT_TOKENS}, of --fit-bits "
        f"{FIT_TEXT_TOKENS})",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=AUTO,
        help="what transformers runs on (default: cuda where torch finds it)",
    )
    parser.add_argument(
        "--output",
        "-o",
        type=path,
        metavar="FILE",
        help="of --compare-recipes: write the report there, too, as JSON; of --fit-bits: the "
        "recipe",
    )
    parser.add_argument(
        "--node-modules",
        type=path,
        metavar="DIR",
        help="for webgpu: the folder with the Node packages `webgpu` and `@mlc-ai/web-runtime` "
        "(default: ./node_modules)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    parser.add_common()
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(non_empty(name).strip() for name in text.split(","))


def texts_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Names of the texts by form."""
    return () if arguments.texts == (NO_TEXTS,) else tuple(dict.fromkeys(arguments.texts))


def _bits(text: str) -> float:
    try:
        bits = float(text)
    except ValueError:
        bits = math.nan
    if not LEAST_BITS <= bits < math.inf:
        raise UsageError(
            f"--fit-bits: expected bits a weight from {LEAST_BITS} on, found `{text}`",
            hint=f"4 bits take {LEAST_BITS} with their scales, 8 bits 8.5: try 4.8",
        )
    return bits


def text_tokens_of(arguments: argparse.Namespace) -> int:
    """Most tokens of a text."""
    default = DEFAULT_TEXT_TOKENS if arguments.fit_bits is None else FIT_TEXT_TOKENS
    given: int | None = arguments.text_tokens
    return default if given is None else given


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for values that cannot be."""
    for option, value, default in (
        ("--steps", arguments.steps, DEFAULT_STEPS),
        ("--text-tokens", text_tokens_of(arguments), DEFAULT_TEXT_TOKENS),
    ):
        least = 2 if option == "--text-tokens" else 1
        if value < least:
            raise UsageError(
                f"{option}: expected at least {least}, found {value}",
                hint=f"leave it out for {default}",
            )
    unknown = [name for name in texts_of(arguments) if name not in TEXTS]
    if unknown:
        raise UsageError(
            f"--texts: unknown text `{unknown[0]}`",
            hint=f"known: {', '.join(TEXTS)}; a text of your own is --text FILE",
        )
    asked = [
        option
        for option, value in (
            ("--compare-recipes", arguments.compare_recipes),
            ("--fit-bits", arguments.fit_bits),
        )
        if value is not None
    ]
    if len(asked) > 1:
        raise UsageError(
            f"{asked[0]} and {asked[1]} are two runs",
            hint="fit a recipe into a file first, then compare q4f16+FILE",
        )
    if not asked:
        _check_package(arguments)
    elif given := [name for name in _OF_PACKAGES if getattr(arguments, name) is not None]:
        raise UsageError(
            f"{asked[0]} compares a checkpoint with itself, and takes no --{given[0]}",
            hint="give the checkpoint in the place of DIR",
        )


def _check_package(arguments: argparse.Namespace) -> None:
    if arguments.reference is None:
        raise UsageError(
            "the following arguments are required: --reference",
            hint="give the checkpoint that the package was made from; or recipes to compare on a "
            "checkpoint by --compare-recipes, or a size to fit one to by --fit-bits",
        )
    if arguments.output is not None:
        raise UsageError(
            "--output is of --compare-recipes and --fit-bits; the report of a package is in the "
            "package",
            hint="leave it out, or print it with --json",
        )
    if arguments.tokenizer is not None:
        raise UsageError(
            "--tokenizer is of --compare-recipes and --fit-bits; a package has its own",
            hint="leave it out",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the arguments alone; returns the exit status: 0 or 2, wrong usage."""
    return run_command(make_parser(), check, argv)

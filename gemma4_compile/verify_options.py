"""The arguments of `gemma4-verify` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.process import Parser, non_empty, path, run_command

DEFAULT_STEPS = 64
DEFAULT_TEXT_TOKENS = 8000
CHAT, DOCUMENT, CODE, SCRIPT = "chat", "document", "code", "script"
TEXTS = (CHAT, DOCUMENT, CODE, SCRIPT)
"""Texts that ship: a conversation, a long one, programs, languages in other scripts."""
NO_TEXTS = "none"
AUTO, CPU, CUDA = "auto", "cpu", "cuda"
DEVICES = (AUTO, CPU, CUDA)


def make_parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="gemma4-verify",
        description="Compare a package with transformers in float32, and write numerics.json and "
        "numerics.svg into it; or, with --compare-recipes, compare recipes on a checkpoint. Exit "
        "status: 0 within the thresholds, 1 not, 2 wrong usage.",
    )
    parser.add_argument(
        "package",
        type=path,
        metavar="DIR",
        help="the package's directory; of --compare-recipes a checkpoint: hub id, directory, or "
        "`tiny`",
    )
    parser.add_argument(
        "--reference",
        type=non_empty,
        metavar="MODEL",
        help="the checkpoint the package was made from: hub id, directory, GGUF file, or `tiny`",
    )
    parser.add_argument(
        "--compare-recipes",
        type=_names,
        metavar="LIST",
        help="recipes with commas, as q4f16,q8f16: bytes, and divergence from float32 by text, of "
        "each, without making a package; of a recipe file q4f16+FILE",
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
        help="of --compare-recipes on a model in GGUF: the hub id or directory of the checkpoint "
        "that it was made from, for its tokenizer and chat template (default: those of the file)",
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
        help="another text than the one that ships; with --compare-recipes one more text",
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
        default=DEFAULT_TEXT_TOKENS,
        metavar="N",
        help="most tokens of each of these texts (default: %(default)s)",
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
        help="of --compare-recipes: write the report there, too, as JSON",
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


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for values that cannot be."""
    for option, value, default in (
        ("--steps", arguments.steps, DEFAULT_STEPS),
        ("--text-tokens", arguments.text_tokens, DEFAULT_TEXT_TOKENS),
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
    if arguments.compare_recipes is None:
        _check_package(arguments)
    elif arguments.reference is not None or arguments.drafter is not None:
        raise UsageError(
            "--compare-recipes compares a checkpoint with itself, and takes no --reference and no "
            "--drafter",
            hint="give the checkpoint in the place of DIR",
        )


def _check_package(arguments: argparse.Namespace) -> None:
    if arguments.reference is None:
        raise UsageError(
            "the following arguments are required: --reference",
            hint="give the checkpoint that the package was made from; or recipes to compare on a "
            "checkpoint by --compare-recipes",
        )
    if arguments.output is not None:
        raise UsageError(
            "--output is of --compare-recipes; the report of a package is in the package",
            hint="leave it out, or print it with --json",
        )
    if arguments.tokenizer is not None:
        raise UsageError(
            "--tokenizer is of --compare-recipes; a package has its own", hint="leave it out"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the arguments alone; returns the exit status: 0 or 2, wrong usage."""
    return run_command(make_parser(), check, argv)

"""The arguments of `gemma4-verify` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.process import Parser, non_empty, path, run_command

DEFAULT_STEPS = 64


def make_parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="gemma4-verify",
        description="Compare a package with transformers in float32, and write numerics.json and "
        "numerics.svg into it. Exit status: 0 within the thresholds, 1 not, 2 wrong usage.",
    )
    parser.add_argument("package", type=path, metavar="DIR", help="the package's directory")
    parser.add_argument(
        "--reference",
        type=non_empty,
        required=True,
        metavar="MODEL",
        help="the checkpoint it was made from: hub id, directory, or `tiny`",
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
        "--steps",
        type=int,
        default=DEFAULT_STEPS,
        metavar="N",
        help="tokens decoded from the start, and again after the long prompt "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--text", type=path, metavar="FILE", help="another text than the one that ships"
    )
    parser.add_argument(
        "--node-modules",
        type=path,
        metavar="DIR",
        help="for webgpu: the folder with the Node packages `webgpu` and `@mlc-ai/web-runtime` "
        "(default: ./node_modules)",
    )
    parser.add_argument("--json", action="store_true", help="print numerics.json, not a table")
    parser.add_common()
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for values that cannot be."""
    if arguments.steps < 1:
        raise UsageError(
            f"--steps: expected at least 1, found {arguments.steps}",
            hint=f"leave it out for {DEFAULT_STEPS}",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the arguments alone; returns the exit status: 0 or 2, wrong usage."""
    return run_command(make_parser(), check, argv)

"""`gemma4-verify DIR --reference CHECKPOINT`: hold a package against transformers in float32."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gemma4_compile.process import Parser, run_command
from gemma4_compile.terminal import Terminal
from gemma4_compile.verification.certificate import verify_package
from gemma4_compile.verification.report import table
from gemma4_compile.verification.subject import DEFAULT_STEPS, VerifyRequest


def _parser() -> Parser:
    parser = Parser(
        prog="gemma4-verify",
        description="Compare a package with transformers in float32, and write numerics.json and "
        "numerics.svg into it. Exit status: 0 within the thresholds, 1 not, 2 wrong usage.",
    )
    parser.add_argument("package", type=Path, metavar="DIR", help="the package's directory")
    parser.add_argument(
        "--reference",
        required=True,
        metavar="MODEL",
        help="the checkpoint it was made from: hub id, directory, or `tiny`",
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit on the hub")
    parser.add_argument(
        "--steps",
        type=int,
        default=DEFAULT_STEPS,
        metavar="N",
        help="tokens decoded from the start, and again behind the long prompt "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="another text than the one that ships"
    )
    parser.add_argument(
        "--node-modules",
        type=Path,
        metavar="DIR",
        help="for webgpu: the folder with the Node packages `webgpu` and `@mlc-ai/web-runtime` "
        "(default: ./node_modules)",
    )
    parser.add_argument("--json", action="store_true", help="print numerics.json, not a table")
    parser.add_common()
    return parser


def _run(arguments: argparse.Namespace) -> None:
    request = VerifyRequest(
        package=arguments.package,
        reference=arguments.reference,
        revision=arguments.revision,
        steps=arguments.steps,
        text=arguments.text,
        node_modules=arguments.node_modules,
    )
    certificate = verify_package(request, Terminal())
    content = certificate.to_json()
    print(json.dumps(content, indent=2) if arguments.json else table(content))
    certificate.check(request.package)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    return run_command(_parser(), _run, argv, interrupted="the package is as it was before")


if __name__ == "__main__":
    sys.exit(main())

"""`gemma4-verify DIR --reference CHECKPOINT`: hold a package against transformers in float32."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from gemma4_compile.process import run_command
from gemma4_compile.terminal import Terminal
from gemma4_compile.verification.numerics_report import verify_package
from gemma4_compile.verification.report import table
from gemma4_compile.verification.subject import VerifyRequest
from gemma4_compile.verify_options import check, make_parser


def _run(arguments: argparse.Namespace) -> None:
    check(arguments)
    request = VerifyRequest(
        package=arguments.package,
        reference=arguments.reference,
        revision=arguments.revision,
        steps=arguments.steps,
        text=arguments.text,
        node_modules=arguments.node_modules,
        drafter=arguments.drafter,
    )
    report = verify_package(request, Terminal())
    content = report.to_json()
    print(json.dumps(content, indent=2) if arguments.json else table(content))
    report.check(request.package)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    return run_command(make_parser(), _run, argv, interrupted="the package is as it was before")


if __name__ == "__main__":
    sys.exit(main())

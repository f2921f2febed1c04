"""`gemma4-verify DIR --reference CHECKPOINT`: hold a package against transformers in float32.

`gemma4-verify CHECKPOINT --compare-recipes LIST` holds recipes against it, and `--fit-bits BITS`
chooses one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gemma4_compile.cli.terminal import Terminal
from gemma4_compile.options.process import run_command
from gemma4_compile.options.verify import check, make_parser, text_tokens_of, texts_of
from gemma4_compile.verification.fit import FitRequest, fit_bits
from gemma4_compile.verification.fit_table import fit_table
from gemma4_compile.verification.frontier import FrontierRequest, compare_recipes
from gemma4_compile.verification.frontier_table import frontier_table
from gemma4_compile.verification.numerics_report import verify_package
from gemma4_compile.verification.report import table
from gemma4_compile.verification.report_file import check_output, write_output
from gemma4_compile.verification.subject import VerifyRequest

Request = TypeVar("Request")


def _run(arguments: argparse.Namespace) -> None:
    check(arguments)
    if arguments.compare_recipes is not None:
        _compare(arguments)
        return
    if arguments.fit_bits is not None:
        _fit(arguments)
        return
    request = VerifyRequest(
        package=arguments.package,
        reference=arguments.reference,
        revision=arguments.revision,
        steps=arguments.steps,
        text=arguments.text,
        node_modules=arguments.node_modules,
        drafter=arguments.drafter,
        texts=texts_of(arguments),
        text_tokens=text_tokens_of(arguments),
        device=arguments.device,
        adapters=tuple(arguments.adapter),
        library=arguments.library,
    )
    report = verify_package(request, Terminal())
    content = report.to_json()
    print(json.dumps(content, indent=2) if arguments.json else table(content))
    report.check(request.package)


def _asked(arguments: argparse.Namespace, kind: Callable[..., Request], **own: object) -> Request:
    """A request about a checkpoint, and what is its `own` alone."""
    return kind(
        model=str(arguments.package),
        revision=arguments.revision,
        texts=texts_of(arguments),
        text=arguments.text,
        text_tokens=text_tokens_of(arguments),
        device=arguments.device,
        tokenizer=arguments.tokenizer,
        adapters=tuple(arguments.adapter),
        **own,
    )


def _compare(arguments: argparse.Namespace) -> None:
    """Compare recipes; the report is written whole, or not at all."""
    output: Path | None = arguments.output
    if output is not None:
        check_output(output)
    request = _asked(arguments, FrontierRequest, recipes=arguments.compare_recipes)
    content = compare_recipes(request, Terminal()).to_json()
    shown = json.dumps(content, indent=1)
    if output is not None:
        write_output(output, f"{shown}\n")
    print(shown if arguments.json else frontier_table(content))


def _fit(arguments: argparse.Namespace) -> None:
    """Choose a recipe; its file is written whole, or not at all."""
    output: Path | None = arguments.output
    if output is not None:
        check_output(output)
    request = _asked(arguments, FitRequest, bits=arguments.fit_bits)
    content = fit_bits(request, Terminal()).to_json()
    if output is not None:
        write_output(output, f"{json.dumps(content['recipe'], indent=1)}\n")
    shown = json.dumps(content, indent=1)
    print(shown if arguments.json else fit_table(content, request.model, output))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    return run_command(make_parser(), _run, argv, interrupted="what was there is as it was before")


if __name__ == "__main__":
    sys.exit(main())

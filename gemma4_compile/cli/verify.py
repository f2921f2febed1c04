"""`gemma4-verify DIR --reference CHECKPOINT`: hold a package against transformers in float32.

`gemma4-verify CHECKPOINT --compare-recipes LIST` holds recipes against it, and `--fit-bits BITS`
chooses one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from gemma4_compile.cli.terminal import Terminal
from gemma4_compile.options.verify import COMMAND, VerifyOptions
from gemma4_compile.package.files import json_text
from gemma4_compile.verification.fit import FitRequest, fit_bits
from gemma4_compile.verification.fit_table import fit_table
from gemma4_compile.verification.frontier import FrontierRequest, compare_recipes
from gemma4_compile.verification.frontier_table import frontier_table
from gemma4_compile.verification.report_file import check_output, write_output
from gemma4_compile.verification.subject import VerifyRequest
from gemma4_compile.verification.verify import shown, verify

Request = TypeVar("Request")


def run(options: VerifyOptions) -> None:
    """Compare a package or recipes, or choose a recipe."""
    if options.output is not None:
        check_output(options.output)
    if options.compare_recipes:
        _compare(options)
    elif options.fit_bits is not None:
        _fit(options)
    else:
        _verify(options)


def _asked(options: VerifyOptions, kind: Callable[..., Request], **own: object) -> Request:
    """A request of a kind: what all have, and what is its `own` alone."""
    return kind(
        revision=options.revision,
        texts=options.texts,
        text=options.text,
        text_tokens=options.most_text_tokens,
        device=options.device,
        adapters=options.adapter,
        **own,
    )


def _verify(options: VerifyOptions) -> None:
    """Compare a package."""
    request = _asked(
        options,
        VerifyRequest,
        package=options.package,
        reference=options.reference,
        steps=options.steps,
        node_modules=options.node_modules,
        drafter=options.drafter,
        library=options.library,
    )
    report = verify(request, Terminal())
    content = report.to_json()
    print(json_text(content, indent=2, ascii_only=True) if options.json else shown(content))
    report.check(request.package)


def _compare(options: VerifyOptions) -> None:
    """Compare recipes; the report is written whole, or not at all."""
    model, recipes = str(options.package), options.compare_recipes
    request = _asked(
        options, FrontierRequest, model=model, tokenizer=options.tokenizer, recipes=recipes
    )
    content = compare_recipes(request, Terminal()).to_json()
    shown = json_text(content, indent=1, ascii_only=True)
    if options.output is not None:
        write_output(options.output, f"{shown}\n")
    print(shown if options.json else frontier_table(content))


def _fit(options: VerifyOptions) -> None:
    """Choose a recipe; its file is written whole, or not at all."""
    model, bits = str(options.package), options.fit_bits
    request = _asked(options, FitRequest, model=model, tokenizer=options.tokenizer, bits=bits)
    content = fit_bits(request, Terminal()).to_json()
    if options.output is not None:
        recipe = json_text(content["recipe"], indent=1, ascii_only=True)
        write_output(options.output, f"{recipe}\n")
    shown = json_text(content, indent=1, ascii_only=True)
    print(shown if options.json else fit_table(content, request.model, options.output))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    return COMMAND.main(run, argv)


if __name__ == "__main__":
    sys.exit(main())

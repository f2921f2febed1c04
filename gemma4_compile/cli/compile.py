"""`gemma4-compile`: options to one call into the pipeline to a printed summary."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gemma4_compile.calibration.calibrate import calibrating
from gemma4_compile.cli.terminal import Terminal
from gemma4_compile.compile.fit import fit_model
from gemma4_compile.compile.library_set import check_plans, needs_of
from gemma4_compile.compile.pipeline import Summary, compile_model, plan_model
from gemma4_compile.compile.request import CompileRequest, compile_request
from gemma4_compile.errors import UsageError
from gemma4_compile.options.compile import COMMAND, CompileOptions
from gemma4_compile.options.package import DEFAULT_MODEL, DEFAULT_PRESET
from gemma4_compile.options.process import check_open, warn
from gemma4_compile.package.output_directory import check_output, check_place
from gemma4_compile.package.partial_build import FIT
from gemma4_compile.planning.fit_report import fit_rows, run_options
from gemma4_compile.planning.plan_report import plan_json, plan_text
from gemma4_compile.reports.quantization_report import report_json, report_model, report_text
from gemma4_compile.targets import TARGETS, Target
from gemma4_compile.verification.publish import (
    PublishRequest,
    check_name,
    planned_build,
    publish,
)
from gemma4_compile.verification.rebuild import RebuildRequest, rebuild
from gemma4_compile.verification.subject import VerifyRequest
from gemma4_compile.verification.verify import check_verify, shown, verify
from gemma4_compile.verification.weights_licence import licence_of


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _print_summary(summary: Summary, request: CompileRequest) -> None:
    rows = [("package", str(summary.output)), ("size", _mebibytes(summary.package_bytes))]
    if summary.recipe is not None:
        rows.append(("recipe", summary.recipe))
    if summary.libraries and summary.report is not None:
        (main, nbytes), *others = summary.libraries
        rows += [
            ("library", f"{_mebibytes(nbytes)} ({main})" if others else _mebibytes(nbytes)),
            *(("", f"{_mebibytes(nbytes)} ({file})") for file, nbytes in others),
            ("kernels", str(summary.report.kernels)),
            (
                "launches per token" if summary.report.decodes else "launches per call",
                str(summary.report.launches_per_token),
            ),
            ("largest binding", _mebibytes(summary.report.largest_binding_bytes)),
        ]
    if summary.nonfinite:
        count, tensors = sum(summary.nonfinite.values()), len(summary.nonfinite)
        rows.append(("not finite", f"{count} weights of {tensors} tensors, stored as 0"))
    rows += [
        ("time", f"{summary.seconds:.1f} s"),
        ("peak memory", _mebibytes(summary.peak_memory_bytes)),
    ]
    if summary.whole:
        program = TARGETS[request.target].run_by
        raw = "" if summary.converses or program != Target.run_by else " --raw"
        if summary.report is not None and not summary.report.decodes:
            program, raw = ("gemma4-serve" if program == Target.run_by else program), ""
        placed = "" if request.fitted is None else run_options(request.fitted)
        rows.append(("run it", f"{program} {shlex.quote(str(summary.output))}{raw}{placed}"))
    if request.fitted is not None:
        rows += fit_rows(request.fitted)
    for name, value in rows:
        print(f"{name + ':' if name else '':<20}{value}")


def run(options: CompileOptions) -> None:
    """Compile, or what else is asked for."""
    options.warn_of_ignored()
    if options.rebuild is not None:
        _rebuild(options, options.rebuild)
        return
    if options.from_package is not None:
        _publish(options, options.from_package)
        return
    if options.plan or options.report:
        check_open(sys.stdout)
    request = compile_request(options)
    if options.plan:
        _print_plan(request, as_json=options.json)
        return
    request = fit_model(request)
    if options.report:
        _print_report(request, as_json=options.json)
        return
    if options.publish is not None:  # what would fail after hours
        check_name(options.publish)
        licence_of(planned_build(request), request.model, options.license_file)
    if options.verify:
        check_verify(request, options.node_modules)
    _print_summary(_compile(request, options.calibrate), request)
    if options.verify:
        _verify(request, options.node_modules)
    if options.shard_size is not None:
        _warn_of_large_files(request.output, options.shard_size)
    if options.publish is not None:
        _publish(options, request.output, request.model)


def _warn_of_large_files(package: Path, most_bytes: int) -> None:
    """Name files that are no weights, and larger than a host with such a limit takes."""
    sizes = {path.name: path.stat().st_size for path in sorted(package.iterdir())}
    large = {name: size for name, size in sizes.items() if size > most_bytes}
    if large:
        warn(
            "files that --shard-size does not divide are larger: "
            + ", ".join(f"{name} ({_mebibytes(size)})" for name, size in large.items()),
            "choose a host that takes such files (docs/web.md)",
        )


def _publish(options: CompileOptions, package: Path, model: str | None = None) -> None:
    """Upload a package, which may just have been made of a model, and print where it is."""
    assert options.publish is not None, "asked for"
    asked = PublishRequest(
        package,
        options.publish,
        licence_file=options.license_file,
        model=model,
        public=options.public,
    )
    print(f"{'published:':<20}{publish(asked, Terminal())}")


def _compile(request: CompileRequest, calibrate: Path | bool | None) -> Summary:
    """Compile, with integers that a text has chosen if `calibrate` is not None."""
    if calibrate is None:
        return compile_model(request, Terminal())
    if request.only == "library":
        raise UsageError("--calibrate is of weights", hint="leave it out, or leave out --only")
    check_place(request.output)
    check_output(request.output, force=request.force)
    file = calibrate if isinstance(calibrate, Path) else None
    with calibrating(request.output, file) as calibrator:
        return compile_model(request, Terminal(), calibrator)


def _verify(request: CompileRequest, node_modules: Path | None) -> None:
    """Compare the new package; VerificationError if it does not reach its thresholds."""
    asked = VerifyRequest(
        request.output,
        request.model,
        revision=request.revision,
        node_modules=node_modules,
        drafter=request.drafter,
        adapters=request.adapters,
    )
    found = verify(asked, Terminal())
    print(shown(found.to_json(), layers=False))
    found.check(request.output)


def _rebuild(options: CompileOptions, package: Path) -> None:
    """Make a package again; VerificationError if it is another."""
    asked = RebuildRequest(
        package,
        model=options.model,
        drafter=options.drafter,
        tokenizer=options.tokenizer,
        adapters=options.adapter,
        output=options.output,
        force=options.force,
    )
    made = rebuild(asked, Terminal())
    print("\n".join(made.lines()))
    made.check()


def _print_plan(request: CompileRequest, *, as_json: bool) -> None:
    """Print the plan, even of what cannot be built; that is an error then."""
    asked = replace(request, only=None)  # of a package that is there: a plan is of a whole one
    if request.model == DEFAULT_MODEL and request.revision is None:
        # Its config ships with this program, so no network is needed.
        asked = replace(asked, model=DEFAULT_PRESET)
    asked = fit_model(asked, request.model)
    plans, origin, asked = plan_model(asked, request.model)
    if as_json:
        fitted = {} if asked.fitted is None else {FIT: asked.fitted}
        values = plan_json(plans[0].numbers, origin, needs_of(plans))
        print(json.dumps({**values, **fitted}, indent=2))
    else:
        if asked.fitted is not None:
            print("\n".join(f"{name + ':':<20}{value}" for name, value in fit_rows(asked.fitted)))
            print()
        why = None if asked.usual is None else asked.usual.why
        print(plan_text(plans[0].numbers, request.model, needs_of(plans), why))
    check_plans(plans)


def _print_report(request: CompileRequest, *, as_json: bool) -> None:
    losses, nonfinite = report_model(request, Terminal())
    if as_json:
        print(json.dumps(report_json(losses, nonfinite), indent=2))
    else:
        print(report_text(losses, nonfinite))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    return COMMAND.main(run, argv)

"""`gemma4-compile`: arguments to one call into the pipeline to a printed summary."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from gemma4_compile.calibration.calibrate import calibrating
from gemma4_compile.cli.terminal import Terminal
from gemma4_compile.compile.library_set import check_plans, needs_of
from gemma4_compile.compile.pipeline import Summary, compile_model, plan_model
from gemma4_compile.compile.request import AUTO, CompileRequest, modalities_of
from gemma4_compile.errors import ArtifactError, QuantizationError, UsageError
from gemma4_compile.options import compile as options
from gemma4_compile.options import libraries as library_options
from gemma4_compile.options.process import Hints, check_open, run_command, warn
from gemma4_compile.package.output_directory import check_output, check_place
from gemma4_compile.planning.plan_report import plan_json, plan_text
from gemma4_compile.quantization.recipe_file import Overrides, read_recipe_file, with_overrides
from gemma4_compile.reports.quantization_report import report_json, report_model, report_text
from gemma4_compile.targets import TARGETS, Target, target_spec
from gemma4_compile.targets.libraries import LibraryForm, fitting_forms
from gemma4_compile.targets.spec import NATIVE
from gemma4_compile.verification.numerics_report import check_tools, verify_package
from gemma4_compile.verification.publish import (
    PublishRequest,
    check_name,
    planned_build,
    publish,
)
from gemma4_compile.verification.rebuild import RebuildRequest, rebuild
from gemma4_compile.verification.report import table
from gemma4_compile.verification.subject import VerifyRequest
from gemma4_compile.verification.weights_licence import licence_of

HINTS: Hints = {
    QuantizationError: f"try another --quant: {', '.join(options.QUANTS)}",
    ArtifactError: "choose another -o",
}


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _print_summary(summary: Summary, target: str) -> None:
    rows = [("package", str(summary.output)), ("size", _mebibytes(summary.package_bytes))]
    if summary.libraries and summary.report is not None:
        (main, nbytes), *others = summary.libraries
        rows += [
            ("library", f"{_mebibytes(nbytes)} ({main})" if others else _mebibytes(nbytes)),
            *(("", f"{_mebibytes(nbytes)} ({file})") for file, nbytes in others),
            ("kernels", str(summary.report.kernels)),
            ("launches per token", str(summary.report.launches_per_token)),
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
        program = TARGETS[target].run_by
        raw = "" if summary.converses or program != Target.run_by else " --raw"
        rows.append(("run it", f"{program} {shlex.quote(str(summary.output))}{raw}"))
    for name, value in rows:
        print(f"{name + ':' if name else '':<20}{value}")


def _run(arguments: argparse.Namespace) -> None:
    options.check(arguments)
    options.warn_of_old_names(arguments)
    options.warn_of_ignored(arguments)
    if arguments.rebuild is not None:
        _rebuild(arguments)
        return
    if arguments.from_package is not None:
        _publish(arguments, arguments.from_package)
        return
    _check_calibrate(arguments)
    arguments.model = arguments.model or options.DEFAULT_MODEL
    if arguments.plan or arguments.report:
        check_open(sys.stdout)
    if arguments.plan:
        _print_plan(arguments)
        return
    if arguments.report:
        _print_report(arguments)
        return
    request = CompileRequest(
        model=arguments.model,
        **_libraries(arguments),
        quant=arguments.quant,
        output=arguments.output,
        context_length=arguments.context,
        prefill_chunk=arguments.prefill_chunk,
        only=arguments.only,
        revision=arguments.revision,
        force=arguments.force,
        shard_bytes=arguments.shard_size,
        dump_ir=arguments.dump_ir,
        overrides=_overrides(arguments),
        modalities=modalities_of(arguments.modalities),
        image_tokens=arguments.image_tokens,
        image_shape=arguments.image_shape,
        allow_nonfinite=arguments.allow_nonfinite,
        drafter=arguments.drafter,
        tokenizer=arguments.tokenizer,
        adapters=tuple(arguments.adapter),
    )
    if arguments.publish is not None:  # what would fail after hours
        check_name(arguments.publish)
        licence_of(planned_build(request), request.model, arguments.license_file)
    if arguments.verify:
        check_tools(target_spec(request.target).device, arguments.node_modules)
    _print_summary(_compile(request, arguments.calibrate), request.target)
    if arguments.verify:
        _verify(request, arguments.node_modules)
    if arguments.shard_size is not None:
        _warn_of_large_files(request.output, arguments.shard_size)
    if arguments.publish is not None:
        _publish(arguments, request.output)


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


def _publish(arguments: argparse.Namespace, package: Path) -> None:
    """Upload a package, and print where it is."""
    asked = PublishRequest(
        package,
        arguments.publish,
        licence_file=arguments.license_file,
        model=arguments.model,
        public=arguments.public,
    )
    print(f"{'published:':<20}{publish(asked, Terminal())}")


class _Libraries(TypedDict):
    """The fields of a request that say which libraries it makes."""

    target: str
    limits: str
    activations: str
    float16: str
    libraries: tuple[LibraryForm, ...]


def _libraries(arguments: argparse.Namespace) -> _Libraries:
    """What --target, --libraries, --limits, --activations and --float16 ask for."""
    names = library_options.libraries(arguments)
    recipe = with_overrides(arguments.quant, _overrides(arguments))
    float16, int8 = recipe.has_float16, recipe.takes_int8
    forms = fitting_forms(names, has_float16=float16, takes_int8=int8)
    same = [name for name in names if name not in {form.name for form in forms}]
    if same and arguments.libraries not in (None, library_options.ALL):
        warn(
            f"--quant {arguments.quant} stores nothing that these libraries would read otherwise: "
            f"{', '.join(same)}",
            f"instead of them there is {', '.join(form.name for form in forms)}",
        )
    return {
        "target": library_options.targets(arguments.target)[0],
        "limits": arguments.limits or library_options.DEFAULT_LIMITS,
        "activations": arguments.activations or AUTO,
        "float16": arguments.float16 or NATIVE,
        "libraries": forms,
    }


def _check_calibrate(arguments: argparse.Namespace) -> None:
    """Raise UsageError where --calibrate, written before MODEL, has taken it for its FILE."""
    given = arguments.calibrate
    if arguments.model is not None or not isinstance(given, Path):
        return
    if given.is_dir() or not given.exists() or given.suffix == ".gguf":
        raise UsageError(
            f"--calibrate takes what follows for the FILE of its text, and `{given}` is no text; "
            "no MODEL is given",
            hint=f"MODEL goes before it: gemma4-compile {shlex.quote(str(given))} --calibrate -o "
            "DIR",
        )


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


def _overrides(arguments: argparse.Namespace) -> Overrides:
    return () if arguments.recipe is None else read_recipe_file(arguments.recipe)


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
    found = verify_package(asked, Terminal())
    print(table(found.to_json(), layers=False))
    found.check(request.output)


def _rebuild(arguments: argparse.Namespace) -> None:
    """Make a package again; VerificationError if it is another."""
    asked = RebuildRequest(
        arguments.rebuild,
        model=arguments.model,
        drafter=arguments.drafter,
        tokenizer=arguments.tokenizer,
        adapters=tuple(arguments.adapter),
        output=arguments.output,
        force=arguments.force,
    )
    made = rebuild(asked, Terminal())
    print("\n".join(made.lines()))
    made.check()


def _print_plan(arguments: argparse.Namespace) -> None:
    """Print the plan, even of what cannot be built; that is an error then."""
    model = arguments.model
    if model == options.DEFAULT_MODEL and arguments.revision is None:
        model = (
            options.DEFAULT_PRESET
        )  # its config ships with this program, so no network is needed
    request = CompileRequest(
        model=model,
        **_libraries(arguments),
        quant=arguments.quant,
        output=Path(),
        context_length=arguments.context,
        prefill_chunk=arguments.prefill_chunk,
        revision=arguments.revision,
        overrides=_overrides(arguments),
        modalities=modalities_of(arguments.modalities),
        image_tokens=arguments.image_tokens,
        image_shape=arguments.image_shape,
        drafter=arguments.drafter,
        adapters=tuple(arguments.adapter),
        shard_bytes=arguments.shard_size,
    )
    plans, origin = plan_model(request)
    if arguments.json:
        print(json.dumps(plan_json(plans[0].numbers, origin, needs_of(plans)), indent=2))
    else:
        print(plan_text(plans[0].numbers, arguments.model, needs_of(plans)))
    check_plans(plans)


def _print_report(arguments: argparse.Namespace) -> None:
    request = CompileRequest(
        model=arguments.model,
        target=library_options.targets(arguments.target)[0],
        quant=arguments.quant,
        output=Path(),
        revision=arguments.revision,
        overrides=_overrides(arguments),
        modalities=modalities_of(arguments.modalities),
        allow_nonfinite=arguments.allow_nonfinite,
        drafter=arguments.drafter,
        adapters=tuple(arguments.adapter),
    )
    losses, nonfinite = report_model(request, Terminal())
    if arguments.json:
        print(json.dumps(report_json(losses, nonfinite), indent=2))
    else:
        print(report_text(losses, nonfinite))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    return run_command(
        options.make_parser(),
        _run,
        argv,
        hints=HINTS,
        interrupted="nothing is left of this run; the same command starts anew",
    )

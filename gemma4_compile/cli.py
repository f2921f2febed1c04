"""`gemma4-compile`: arguments to one call into the pipeline to a printed summary."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from gemma4_compile.errors import (
    ArtifactError,
    QuantizationError,
    UsageError,
)
from gemma4_compile.pipeline import (
    AUTO,
    DEFAULT_CONTEXT_LENGTH,
    DEFAULT_PREFILL_CHUNK,
    CompileRequest,
    Summary,
    compile_model,
    plan_model,
)
from gemma4_compile.plan_report import plan_json, plan_text
from gemma4_compile.process import Hints, Parser, run_command, warn
from gemma4_compile.quantization.recipe import RECIPES
from gemma4_compile.quantization.recipe_file import Overrides, read_recipe_file
from gemma4_compile.quantization_report import report_json, report_model, report_text
from gemma4_compile.sources import DEFAULT_MODEL
from gemma4_compile.targets import TARGETS
from gemma4_compile.targets.spec import ACTIVATIONS
from gemma4_compile.terminal import Terminal
from gemma4_compile.verification.certificate import check_tools, verify_package
from gemma4_compile.verification.report import table
from gemma4_compile.verification.subject import VerifyRequest

RUN_BY = {"webgpu": "gemma4-serve"}  # the other targets' packages run in gemma4-chat, too
PLANNED_TARGET, PLANNED_QUANT = "webgpu", "q4f16"  # what --plan takes where nothing is said
HINTS: Hints = {QuantizationError: "try another --quant", ArtifactError: "choose another -o"}


_OF_PACKAGES = ("output", "force", "only", "dump_ir", "verify", "node_modules")
# What --plan and --report do not need: they stand in front of a compilation's own options, so that
# the same line with one word more says what it would do.
IGNORED: dict[str, tuple[str, ...]] = {
    "--plan": (*_OF_PACKAGES, "allow_nonfinite"),
    "--report": (*_OF_PACKAGES, "limits", "activations", "context", "prefill_chunk"),
}


def _parser() -> Parser:
    parser = Parser(
        prog="gemma4-compile",
        description="Compile a Gemma 4 checkpoint into a package for the browser, for GPUs of "
        "NVIDIA and Apple, or for this CPU.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="hub id, directory, or `tiny`, which ships with this program (default: %(default)s)",
    )
    parser.add_argument("--target", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--quant", metavar="QUANT", help=", ".join(RECIPES))
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where the package goes")
    parser.add_argument(
        "--plan",
        action="store_true",
        help=f"say what would be built, from the config alone (default: --target {PLANNED_TARGET} "
        f"--quant {PLANNED_QUANT})",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="say what the recipe rounds away, tensor by tensor (reads all weights)",
    )
    parser.add_argument("--json", action="store_true", help="with --plan or --report: as JSON")
    parser.add_argument(
        "--limits",
        default="default",
        metavar="PROFILE",
        help="default; webgpu also has compat, subgroups (of 32 threads or more; subgroups-16, -8 "
        "and -4 for smaller ones) and h200",
    )
    parser.add_argument(
        "--activations",
        default=AUTO,
        metavar="FORM",
        help="what matmuls multiply: exact vectors, or int8 in groups of 32 "
        f"({AUTO}, {', '.join(ACTIVATIONS)}; default: %(default)s, as --target and --limits say)",
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"longest sequence in tokens (default: {DEFAULT_CONTEXT_LENGTH}, or the model's)",
    )
    parser.add_argument(
        "--prefill-chunk",
        type=int,
        metavar="N",
        help=f"tokens of one prefill step (default: {DEFAULT_PREFILL_CHUNK}, or the context)",
    )
    parser.add_argument(
        "--only",
        choices=("library", "weights"),
        help="one half of the package; the library needs only the config",
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit on the hub")
    parser.add_argument(
        "--force", action="store_true", help="replace DIR even if it is no package of ours"
    )
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="other schemes for some parameters, as JSON: "
        '{"schemes": {"embed_tokens": "q8f16_1"}}; --quant is what the rest gets',
    )
    parser.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="store 0 for weights that are NaN or infinite, which are an error otherwise; the "
        "package says which",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="then compare the package with transformers in float32 (gemma4-verify does it alone)",
    )
    parser.add_argument(
        "--node-modules",
        type=Path,
        metavar="DIR",
        help="with --verify, for webgpu: where the Node packages `webgpu` and "
        "`@mlc-ai/web-runtime` are (default: ./node_modules)",
    )
    parser.add_argument("--dump-ir", type=Path, metavar="DIR", help="write the IR of each phase")
    parser.add_common()
    return parser


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _print_summary(summary: Summary, target: str) -> None:
    rows = [("package", str(summary.output)), ("size", _mebibytes(summary.package_bytes))]
    if summary.library_bytes is not None and summary.report is not None:
        rows += [
            ("library", _mebibytes(summary.library_bytes)),
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
        rows.append(("run it", f"{RUN_BY.get(target, 'gemma4-chat')} {summary.output}"))
    for name, value in rows:
        print(f"{name + ':':<20}{value}")


def _warn_of_ignored(arguments: argparse.Namespace, question: str) -> None:
    """Name the options that do nothing beside --plan or --report."""
    parser = _parser()
    given = [
        "-o" if name == "output" else f"--{name.replace('_', '-')}"
        for name in IGNORED[question]
        if getattr(arguments, name) != parser.get_default(name)
    ]
    if given:
        verb = "does" if len(given) == 1 else "do"
        warn(
            f"{question} writes nothing, and {', '.join(given)} {verb} nothing beside it",
            f"leave out {question} to compile",
        )


def _run(arguments: argparse.Namespace) -> None:
    if arguments.plan and arguments.report:
        raise UsageError("--plan and --report exclude each other", hint="give one after the other")
    for question in (question for question in IGNORED if getattr(arguments, question[2:])):
        _warn_of_ignored(arguments, question)
    if arguments.plan:
        _print_plan(arguments)
        return
    if arguments.report:
        _print_report(arguments)
        return
    needed = {
        "--target": arguments.target,
        "--quant": arguments.quant,
        "-o/--output": arguments.output,
    }
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        target, quant = arguments.target or "webgpu", arguments.quant or "q4f16"
        example = f"gemma4-compile {arguments.model} --target {target} --quant {quant} -o DIR"
        raise UsageError(
            f"the following arguments are required: {', '.join(missing)}",
            hint=f"for example: {example}",
        )
    if arguments.json:
        raise UsageError("--json goes with --plan or --report", hint="leave it out, or add one")
    if arguments.node_modules is not None and not arguments.verify:
        raise UsageError("--node-modules goes with --verify", hint="leave it out, or add --verify")
    request = CompileRequest(
        model=arguments.model,
        target=arguments.target,
        quant=arguments.quant,
        output=arguments.output,
        limits=arguments.limits,
        activations=arguments.activations,
        context_length=arguments.context,
        prefill_chunk=arguments.prefill_chunk,
        only=arguments.only,
        revision=arguments.revision,
        force=arguments.force,
        dump_ir=arguments.dump_ir,
        overrides=_overrides(arguments),
        allow_nonfinite=arguments.allow_nonfinite,
    )
    if arguments.verify and arguments.only:
        raise UsageError("--verify needs a whole package", hint="leave out --only")
    if arguments.verify:
        check_tools(arguments.target, arguments.node_modules)
    _print_summary(compile_model(request, Terminal()), arguments.target)
    if arguments.verify:
        _verify(request, arguments.node_modules)


def _overrides(arguments: argparse.Namespace) -> Overrides:
    return () if arguments.recipe is None else read_recipe_file(arguments.recipe)


def _verify(request: CompileRequest, node_modules: Path | None) -> None:
    """Compare the new package; VerificationError if it does not reach its thresholds."""
    asked = VerifyRequest(
        request.output, request.model, revision=request.revision, node_modules=node_modules
    )
    found = verify_package(asked, Terminal())
    print(table(found.to_json(), layers=False))
    found.check(request.output)


def _print_plan(arguments: argparse.Namespace) -> None:
    """Print the plan, even of what cannot be built; that is an error then."""
    request = CompileRequest(
        model=arguments.model,
        target=arguments.target or PLANNED_TARGET,
        quant=arguments.quant or PLANNED_QUANT,
        output=Path(),
        limits=arguments.limits,
        activations=arguments.activations,
        context_length=arguments.context,
        prefill_chunk=arguments.prefill_chunk,
        revision=arguments.revision,
        overrides=_overrides(arguments),
    )
    plan, identity = plan_model(request)
    if arguments.json:
        print(json.dumps(plan_json(plan, identity), indent=2))
    else:
        print(plan_text(plan, arguments.model))
    plan.check()


def _print_report(arguments: argparse.Namespace) -> None:
    request = CompileRequest(
        model=arguments.model,
        target=arguments.target or PLANNED_TARGET,
        quant=arguments.quant or PLANNED_QUANT,
        output=Path(),
        revision=arguments.revision,
        overrides=_overrides(arguments),
        allow_nonfinite=arguments.allow_nonfinite,
    )
    losses, nonfinite = report_model(request, Terminal())
    if arguments.json:
        print(json.dumps(report_json(losses, nonfinite), indent=2))
    else:
        print(report_text(losses, nonfinite))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    return run_command(
        _parser(),
        _run,
        argv,
        hints=HINTS,
        interrupted="the same command goes on from the weights that were finished",
    )

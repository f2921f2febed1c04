"""`python -m gemma4_compile.kernels`: the kernels of a model's library, and one of them in full.

    python -m gemma4_compile.kernels list --model gemma-4-E2B-it --target webgpu
    python -m gemma4_compile.kernels show prefill_attention --model gemma-4-E2B-it --target webgpu

Needs neither a device nor weights: the library is lowered from the config, and one kernel compiled.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tvm
from tvm import tirx

from gemma4_compile import abi
from gemma4_compile.checkpoint.drafter import open_drafter, with_drafter
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.sources import SHIPPED, open_source
from gemma4_compile.checkpoint.suppressed_tokens import suppressed_tokens
from gemma4_compile.compile.build import (
    build_module,
    calls_of,
    decoder_options,
    kernel_descriptions,
)
from gemma4_compile.compile.request import CompileRequest, modalities_of
from gemma4_compile.compile.resolve import choose, sizes_of
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import preset_names
from gemma4_compile.operators.base import Operator, operator_from
from gemma4_compile.options import package as options
from gemma4_compile.options.process import Parser, non_empty, run_command
from gemma4_compile.passes.check_limits import kernel_use
from gemma4_compile.passes.kernel_launch import kernel_launches
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.passes.lowering import lower
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.system import logs
from gemma4_compile.targets import TargetSpec
from gemma4_compile.targets.kernels.select import select
from gemma4_compile.targets.libraries import LIBRARIES, fitting_forms

DEFAULT_MODEL = options.DEFAULT_PRESET
OF_TVM = "-"  # in place of an operator's kind
TESTS = "tests/numerics"
EVERY_KERNEL = f"{TESTS}/test_kernels.py"  # runs those of all released sizes
ENTRY_POINT = "_kernel"  # what TVM appends to a kernel's name
LABEL_WIDTH = 16


@dataclass(frozen=True)
class Library:
    """A lowered model library.

    Attributes
    ----------
    module : scheduled kernels, and the exported functions that call them
    operators : the operator of each kernel by the kernel's name, None for one that TVM made
    calls : launches by exported function and kernel
    """

    module: tvm.IRModule
    spec: TargetSpec
    operators: Mapping[str, Operator | None]
    calls: Mapping[str, Counter[str]]

    def kind(self, name: str) -> str:
        """The kind of a kernel's operator."""
        operator = self.operators[name]
        return OF_TVM if operator is None else operator.kind

    def callers(self, name: str) -> dict[str, int]:
        """Launches of a kernel by the exported functions that launch it."""
        return {function: count[name] for function, count in self.calls.items() if count[name]}


def check_model(model: str) -> None:
    """Raise UsageError for what can only be a preset's name, and is none; the hint names some."""
    known = (*SHIPPED, *preset_names())
    if "/" in model or model in known or local_path(model).exists():
        return
    near = difflib.get_close_matches(model, known, n=3, cutoff=0.5)
    raise UsageError(
        f"no model `{model}`: neither a preset nor a directory",
        hint=f"presets: {', '.join(near or known)}; or a hub id like {options.DEFAULT_MODEL}",
    )


def lower_library(request: CompileRequest) -> Library:
    """Lower the library that `gemma4-compile` would build; needs the config alone.

    Raises
    ------
    Gemma4CompileError
        As `compile_model` does.
    """
    check_model(request.model)
    chosen = choose(request).main
    spec, recipe = chosen.target, chosen.recipe
    with (
        open_source(
            request.model, request.revision, weights=False, modalities=request.modalities
        ) as source,
        open_drafter(request.drafter, source.config, weights=False) as drafter,
    ):
        config = with_drafter(source.config, drafter)
        sizes = sizes_of(request, config)
        chunk, context = sizes.prefill_chunk, sizes.context_length
        suppressed = suppressed_tokens(source.generation_config, config.vocab_size)
    options = decoder_options(recipe, spec, chunk, suppressed, context_length=context)
    exported = build_module(config, recipe, spec, options)
    descriptions = kernel_descriptions(exported)  # scheduled kernels have none, but equal names
    module = lower(exported, spec)
    functions = {var.name_hint: func for var, func in module.functions_items()}
    kernels = sorted(name for name, f in functions.items() if isinstance(f, tirx.PrimFunc))
    return Library(
        module,
        spec,
        {name: _operator(descriptions.get(name)) for name in kernels},
        {name: Counter(calls_of(module, name)) for name in functions if name not in kernels},
    )


def _operator(description: str | None) -> Operator | None:
    return None if description is None else operator_from(description)


def listing(library: Library) -> str:
    """A table of all kernels: launches per decoded token and per prefill chunk, other callers."""
    rows = [("kernel", "operator", "token", "chunk", "also launched by")]
    for name in library.operators:
        callers = library.callers(name)
        token, chunk = callers.pop(abi.DECODE, 0), callers.pop(abi.PREFILL, 0)
        others = ", ".join(f"{caller} ({count})" for caller, count in callers.items())
        rows.append((name, library.kind(name), str(token or "-"), str(chunk or "-"), others))
    token, chunk = (library.calls[name].total() for name in (abi.DECODE, abi.PREFILL))
    rows.append((f"{len(library.operators)} kernels", "", str(token), str(chunk), ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (str.ljust, str.ljust, str.rjust, str.rjust, str.ljust)
    return "\n".join(
        "  ".join(
            align(text, width) for align, text, width in zip(aligned, row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def known_name(library: Library, name: str) -> str:
    """Return the kernel that is meant by its name or its entry point (`NAME_kernel`).

    Raises
    ------
    UsageError
        If the library has none of that name; the hint names similar ones.
    """
    for known in (name, name.removesuffix(ENTRY_POINT)):
        if known in library.operators:
            return known
    near = [
        known
        for known in library.operators
        if name.lower() in known or name.lower() == library.kind(known)
    ] or difflib.get_close_matches(name, library.operators, n=5, cutoff=0.5)
    spec = library.spec
    raise UsageError(
        f"no kernel `{name}` among the {len(library.operators)} of this library "
        f"(target `{spec.name}`, limits `{spec.limits}`, activations `{spec.activations}`)",
        hint=f"similar: {', '.join(near)}"
        if near
        else "`python -m gemma4_compile.kernels list` with the same options names them",
    )


def described(library: Library, name: str) -> str:
    """All there is to know of a kernel, its source at the end."""
    operator, func = library.operators[name], library.module[name]
    lines = [_line("kernel", name)]
    if operator is None:
        lines.append(_line("operator", "none: TVM makes and schedules this kernel"))
    else:
        lines.append(_line("operator", f"{operator.kind} ({type(operator).__name__})"))
        lines += [f"    {field} = {value!r}" for field, value in asdict(operator).items()]
        lines.append(_line("definition", place_of(type(operator))))
        if library.spec.is_gpu:
            factory = select(operator, library.spec)
            lines.append(_line("factory", f"{place_of(factory)} ({factory.__name__})"))
        lines.append(_line("tests", ", ".join(tests_of(operator, library.spec))))
    callers = library.callers(name).items()
    lines.append(
        _line("launches", ", ".join(f"{count} in {caller}" for caller, count in callers) or "none")
    )
    lines += [_line(*item) for item in _launch(library, name)]
    source = kernel_source(func, name, library.spec)
    return "\n".join([*lines, "", source.strip("\n")])


def _line(label: str, text: str) -> str:
    return f"{label + ':':<{LABEL_WIDTH}}{text}"


def _launch(library: Library, name: str) -> Iterator[tuple[str, str]]:
    if not library.spec.is_gpu:
        yield "grid", "none: loops of the host"
        return
    launches = kernel_launches(library.module, [name], library.spec)[name]
    if not launches:
        yield "grid", f"none: no schedule for {library.spec.name}"
    for launch in launches:
        yield "entry point", launch.entry_point
        yield "bindings", ", ".join(launch.bindings)
        yield "scalars", ", ".join(launch.scalars) or "none"
        yield "grid", " x ".join(map(_plain, launch.grid))
        yield "workgroup", " x ".join(map(_plain, launch.threads))
    use = kernel_use(name, library.module[name])
    yield "shared memory", f"{use.shared_bytes} bytes"


def _plain(extent: tirx.PrimExpr) -> str:
    """An extent without TVM's notation for the type of a constant."""
    return re.sub(r"T\.int(?:32|64)\((-?\d+)\)", r"\1", str(extent))


def place_of(code: Callable[..., object]) -> str:
    """`file:line` of a class or function, relative to the working directory where it is inside."""
    path = Path(inspect.getsourcefile(code) or "").resolve()
    line = inspect.getsourcelines(code)[1]
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"


def tests_of(operator: Operator, spec: TargetSpec) -> list[str]:
    """Files of a checkout that test an operator and its kernels, from the checkout's root.

    Those of its family that name its class; without a checkout, the family's folder.
    """
    root = Path(inspect.getsourcefile(select) or "").resolve().parents[2]
    family = select(operator, spec).__module__.split(".")[-2]
    word = re.compile(rf"\b{type(operator).__name__}\b")
    found = [
        path.relative_to(root).as_posix()
        for path in sorted((root / TESTS / family).glob("test_*.py"))
        if word.search(path.read_text("utf-8"))
    ]
    return [*(found or [f"{TESTS}/{family}/"]), EVERY_KERNEL]


def make_parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="python -m gemma4_compile.kernels",
        description="The kernels of the library that gemma4-compile builds with the same options; "
        "no weights, no device.",
    )
    parser.add_common()
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    listed = commands.add_parser(
        "list", help="one line a kernel", description="List kernels, operators and launches."
    )
    shown = commands.add_parser(
        "show",
        help="one kernel: operator, definition, factory, tests, grid, source",
        description="Print all there is to know of one kernel.",
    )
    shown.add_argument("name", metavar="NAME", help="the kernel, as `list` names it")
    for command in (listed, shown):
        _add_options(command)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        type=non_empty,
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help=f"{', '.join(preset_names())}, `tiny`, a directory or a hub id (default: %(default)s)",
    )
    parser.add_argument(
        "--revision", type=non_empty, metavar="R", help="branch, tag or commit on the hub"
    )
    parser.add_argument(
        "--library",
        type=non_empty,
        metavar="NAME",
        help=f"one of a package's libraries: {', '.join(LIBRARIES)}; in place of --target, "
        "--limits and --activations",
    )
    parser.add_argument("--target", default=options.DEFAULT_TARGET, metavar="TARGET")
    parser.add_argument("--quant", default=options.TRAINED_QUANT, metavar="QUANT")
    parser.add_argument("--limits", default="default", metavar="NAME")
    parser.add_argument("--activations", default=options.ACTIVATIONS[0], metavar="FORM")
    parser.add_argument("--modalities", default=options.MODALITIES[0], metavar="LIST")
    parser.add_argument(
        "--drafter",
        type=non_empty,
        metavar="ID_OR_DIR",
        help="with the kernels of this drafter",
    )
    parser.add_argument("--prefill-chunk", type=int, metavar="N")
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens; a long one has the keys of full attention in parts where bindings are small",
    )


def _run(arguments: argparse.Namespace) -> None:
    logs.set_up()
    names = () if arguments.library is None else (arguments.library,)
    recipe = with_overrides(arguments.quant, ())
    kind = {"has_float16": recipe.has_float16, "takes_int8": recipe.takes_int8}
    library = lower_library(
        CompileRequest(
            model=arguments.model,
            target=arguments.target,
            quant=arguments.quant,
            output=Path(),
            limits=arguments.limits,
            activations=arguments.activations,
            prefill_chunk=arguments.prefill_chunk,
            context_length=arguments.context,
            modalities=modalities_of(options.parse_modalities(arguments.modalities)),
            revision=arguments.revision,
            drafter=arguments.drafter,
            libraries=fitting_forms(names, **kind),
        )
    )
    if arguments.command == "list":
        print(listing(library))
    else:
        print(described(library, known_name(library, arguments.name)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 failed, 2 usage, 130 interrupted."""
    parser, given = make_parser(), sys.argv[1:] if argv is None else argv
    return run_command(
        parser.prog,
        lambda: _run(parser.parse_args(given)),
        debug="--debug" in given,
        interrupted="nothing was written",
    )


if __name__ == "__main__":
    sys.exit(main())

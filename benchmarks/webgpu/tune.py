"""Chooses sizes of kernels by measuring: writes candidates, and reads what a device made of them.

`prepare` writes every candidate's WGSL with what `tune.mjs` needs to launch it, so that the
device's machine needs Node alone; `choose` reads the results and writes a tuning.
What is searched: candidates.py. What is measured: ../README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.buffer import is_buffer_var

from benchmarks.drafter_config import drafter_values
from benchmarks.tower_operations import BLOCK_PATCHES
from benchmarks.webgpu.candidates import CANDIDATES, Family
from gemma4_compile import abi
from gemma4_compile.compile.build import build_module, calls_of, decoder_options
from gemma4_compile.errors import LoweringError
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import TEXT_ONLY
from gemma4_compile.operators.base import Operator, operator_of
from gemma4_compile.operators.rows import ONE, Chunk
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.passes.check_limits import check_limits
from gemma4_compile.passes.lowering import tir_pipeline
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import TARGETS, TargetSpec, target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.tuning import FOLDER, Tuning, changed, from_fields

CHUNK = 512
CONTEXTS = (1023, 8191)  # positions before a decoded token
PREFILL_BEFORE = 512
CODE = "ffi.Module.create.webgpu"  # TVM hands its WGSL to this function, if somebody registers it


@dataclass(frozen=True)
class Case:
    """A kernel and how to launch it.

    Attributes
    ----------
    operator : its description, for people
    context, rows : positions before the step's own, and these
    launches : in a token, or in a chunk
    bindings : (bytes, access, argument) by binding number
    uniforms : values of the uniform's fields, in order: "i32" or "f32" and the value
    """

    family: str
    values: dict[str, Any]
    preset: str
    operator: str
    context: int
    rows: int
    launches: int
    wgsl: str
    groups: tuple[int, int]
    bindings: list[tuple[int, str, str]]
    uniforms: list[tuple[str, float]]


@cache
def operators_of(preset: str, quant: str, spec: TargetSpec, function: str) -> dict[Operator, int]:
    """The operators of one step of a model, with the number of their launches."""
    modalities = None if function == abi.EMBED_IMAGE else TEXT_ONLY
    config, recipe = Gemma4Config.from_preset(preset, modalities), RECIPES[quant]
    if function == abi.VERIFY:
        config = replace(config, drafter=read_drafter(drafter_values(preset)))
    module = build_module(config, recipe, spec, decoder_options(recipe, spec, CHUNK))
    names = Counter(calls_of(module, function))
    found = ((operator_of(module[name]), count) for name, count in names.items())
    return {operator: count for operator, count in found if operator is not None}


def wgsl_of(func: tirx.PrimFunc, spec: TargetSpec) -> str:
    """The WGSL of one kernel."""
    kept: dict[str, Any] = {}

    class Kept(Exception):
        pass

    def keep(functions: Any, *_others: Any) -> None:
        kept.update(functions.items())
        raise Kept

    tvm.register_global_func(CODE, keep, override=True)
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        tvm.tirx.build(module, spec.tvm_target(), pipeline=tir_pipeline(spec))
    except Exception:
        if not kept:
            raise
    finally:
        tvm_ffi.remove_global_func(CODE)  # or nothing else could be compiled in this process
    (text,) = kept.values()
    text = text.decode() if isinstance(text, bytes) else str(text)
    return TARGETS[spec.name].source(text, spec)


def evaluate(expression: Any, sizes: Mapping[str, int]) -> int:
    """An integer expression with its variables replaced by name."""
    if isinstance(expression, int):
        return expression
    known = tvm_ffi.structural_map(
        expression, [(tirx.Var, lambda var: tirx.const(sizes[var.name], str(var.ty)))]
    )
    return int(tvm.sym.Analyzer().simplify(known))


def grid_of(func: tirx.PrimFunc, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Blocks along x and y."""
    extents: dict[str, Any] = {}

    def visit(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            extents[str(node.node.thread_tag)] = node.value

    tvm_ffi.structural_walk(func.body, [(tirx.AttrStmt, visit)])
    x, y = (evaluate(extents.get(f"blockIdx.{axis}", 1), sizes) for axis in "xy")
    return x, y


def make_case(
    operator: Operator,
    spec: TargetSpec,
    context: int,
    capacity: int,
    facts: Mapping[str, Any],
    family: Family,
) -> Case:
    """Compile one operator's kernel and describe its launch in a state of `capacity` positions.

    A picture's blocks are counted in an attention of patches, and the patches elsewhere.

    Raises
    ------
    LoweringError
        If the kernel breaks a limit of the target.
    """
    func = make_kernel(operator, spec)
    check_limits(tvm.IRModule({operator.name: func}), spec)
    rows = family.few or (1 if getattr(operator, "rows", ONE) == ONE else CHUNK)
    if family.blocks:
        rows = family.blocks * (1 if isinstance(operator, PatchAttention) else BLOCK_PATCHES)
    sizes = {"n": rows, "m": 1, "layer": 3, "capacity": capacity, "chunk": CHUNK}
    sizes["packGridDimX"] = 2**31 - 1
    text = wgsl_of(func, spec)
    bytes_of = {
        param.name: prod(evaluate(dim, sizes) for dim in param.shape)
        * tvm.DataType(str(param.dtype)).itemsize
        for param in func.params
        if is_buffer_var(param)
    }
    storage = re.findall(r"@binding\((\d+)\) var<storage, (\w+)> (\w+)_ptr :", text)
    fields = re.search(r"struct PODArgs \{(.*?)\}", text, re.DOTALL)
    assert fields is not None, "every kernel has a uniform"
    return Case(
        operator=repr(operator),
        context=context,
        rows=rows,
        wgsl=text,
        groups=grid_of(func, sizes),
        bindings=[(bytes_of[name], access, name) for _, access, name in storage],
        uniforms=[
            (kind, sizes[name]) for name, kind in re.findall(r"(\w+)\s*: (\w+)", fields.group(1))
        ],
        **facts,
    )


def prepare(
    presets: Sequence[str],
    quant: str,
    limits: str,
    families: Sequence[str],
    contexts: Sequence[int] = CONTEXTS,
) -> Iterator[Case]:
    """Every candidate's kernels for the models; attention of one position after each context."""
    for name in families:
        family = CANDIDATES[name]
        for values in family.candidates:
            base = target_spec("webgpu", limits)
            tuning = changed(base.tuning, {name: values})
            spec = replace(base, tuning=tuning)
            made = 0
            try:
                for preset in presets:
                    for case in _cases(name, family, values, preset, quant, spec, contexts):
                        made += 1
                        yield case
            except (AssertionError, LoweringError) as error:
                print(f"{name} {values}: left out: {error}", file=sys.stderr)
                continue
            print(f"{name} {values}: {made} kernels", file=sys.stderr)


def _cases(
    name: str,
    family: Family,
    values: dict[str, Any],
    preset: str,
    quant: str,
    spec: TargetSpec,
    contexts: Sequence[int],
) -> list[Case]:
    # Sizes of a tower's kernels change none of its operators.
    known = target_spec("webgpu", spec.limits) if family.blocks else spec
    found = operators_of(preset, quant, known, family.function)
    contexts = (PREFILL_BEFORE,) if family.is_prefill else contexts
    capacity = max(contexts) + 1 + CHUNK
    cases = []
    for operator, launches in found.items():
        is_chunk = isinstance(getattr(operator, "rows", ONE), Chunk)
        is_meant = bool(family.few) or is_chunk == family.is_prefill
        if operator.variant not in family.kinds or not is_meant:
            continue
        if family.blocks and launches == 1:
            continue  # before or after the layers: another number of rows, and little time
        facts = {"family": name, "values": values, "preset": preset, "launches": launches}
        sees_context = "attention" in operator.kind
        cases += [
            make_case(operator, spec, context, capacity, facts, family)
            for context in (contexts if sees_context else contexts[:1])
        ]
    return cases


def choose(lines: Sequence[dict[str, Any]], weights: Mapping[str, float]) -> dict[str, Any]:
    """The fastest candidate of each family: microseconds of a step, summed over the models.

    A candidate that lacks a model is left out.
    """
    sums: dict[str, dict[str, dict[str, float]]] = {}
    for line in lines:
        key = json.dumps(line["values"], sort_keys=True)
        by_preset = sums.setdefault(line["family"], {}).setdefault(key, {})
        step = line["microseconds"] * line["launches"] * weights.get(line["preset"], 1.0)
        by_preset[line["preset"]] = by_preset.get(line["preset"], 0.0) + step
    chosen = {}
    for family, found in sums.items():
        presets = max(len(by_preset) for by_preset in found.values())
        whole = {key: by for key, by in found.items() if len(by) == presets}
        best = min(whole, key=lambda key: sum(whole[key].values()))
        for key in sorted(whole, key=lambda key: sum(whole[key].values())):
            print(f"{family} {key}: {whole[key]}", file=sys.stderr)
        chosen[family] = json.loads(best)
    return chosen


def main() -> None:
    """Prepare or choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare", help="write the candidates")
    first.add_argument("output", type=Path, help="a .jsonl for tune.mjs")
    first.add_argument("--model", action="append", required=True, help="a preset; repeatable")
    first.add_argument("--family", action="append", choices=list(CANDIDATES))
    first.add_argument("--quant", default="q4f16")
    first.add_argument("--limits", default="h200", help="of the target webgpu")
    first.add_argument(
        "--contexts", type=int, nargs="+", default=CONTEXTS, help="positions before a decoded token"
    )
    second = commands.add_parser("choose", help="write a tuning")
    second.add_argument("results", type=Path, help="what tune.mjs printed")
    tunings = sorted(path.stem for path in FOLDER.glob("*.json"))
    second.add_argument("--tuning", choices=tunings, required=True, help="file in targets/tunings")
    options = parser.parse_args()
    if options.command == "prepare":
        families = options.family or list(CANDIDATES)
        with options.output.open("w", encoding="utf-8") as file:
            arguments = (options.model, options.quant, options.limits, families, options.contexts)
            for case in prepare(*arguments):
                file.write(json.dumps(asdict(case)) + "\n")
        return
    lines = [json.loads(line) for line in options.results.read_text().splitlines() if line]
    path = FOLDER / f"{options.tuning}.json"
    tuning = json.loads(path.read_text(encoding="utf-8"))
    for family, values in choose(lines, {}).items():
        tuning[family] = {**tuning.get(family, {}), **values}
    from_fields(Tuning, tuning)
    path.write_text(json.dumps(tuning, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

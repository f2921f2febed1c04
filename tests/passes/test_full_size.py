"""Released sizes, lowered from their configs: limits, launches, kernels, planned memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import tvm
from tvm import relax, tirx

from benchmarks.drafter_config import drafter_values
from gemma4_compile import abi
from gemma4_compile.compile.build import (
    LibraryReport,
    build_module,
    decoder_options,
    library_report,
)
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.passes.lowering import lower, virtual_machine_passes
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests.marks import exhaustive_if, slow_unless
from tests.presets import GEMMA3N, GEMMA4

pytestmark = pytest.mark.package

TARGET = target_spec("webgpu")
CHUNK = 512
SPARSE = "gemma-4-26B-A4B-it"
# Larger ones of the same form as 12B and Gemma 3n's E2B. E4B has one of its own: per-layer
# embeddings as E2B, but gate and up too large to norm in their launch.
LARGER = {"gemma-4-31B-it", "gemma-3n-E4B-it"}
# Fewer layers of the same model: whole periods of its pattern, and in E2B fewer that share keys.
FEWER_LAYERS = {
    "gemma-4-E2B-it": (25, 10),
    "gemma-4-E4B-it": (30, 6),
    "gemma-4-12B-it": (12, 0),
    "gemma-4-26B-A4B-it": (12, 0),
    "gemma-4-31B-it": (12, 0),
}

MOST_LAUNCHES = {  # of a layer
    "gemma-4-E2B-it": 8,
    "gemma-4-E4B-it": 9,
    "gemma-4-12B-it": 8,
    "gemma-4-26B-A4B-it": 9,
    "gemma-4-31B-it": 8,
}


def lowered(config: Gemma4Config, quant: str) -> tvm.IRModule:
    recipe = RECIPES[quant]
    module = build_module(config, recipe, TARGET, decoder_options(recipe, TARGET, CHUNK))
    return lower(module, TARGET)


def shortened(preset: str) -> Gemma4Config:
    layers, shared = FEWER_LAYERS[preset]
    config = Gemma4Config.from_preset(preset)
    return replace(
        config,
        num_hidden_layers=layers,
        num_kv_shared_layers=shared,
        layer_types=config.layer_types[:layers],
        num_key_value_heads=config.num_key_value_heads[:layers],
        head_dim=config.head_dim[:layers],
    )


def kernels(module: tvm.IRModule) -> list[str]:
    """Names of the kernels; not of lookups, of which a larger per-layer table takes more."""
    names = (
        var.name_hint for var, func in module.functions_items() if isinstance(func, tirx.PrimFunc)
    )
    return sorted(name for name in names if not name.startswith("embedding"))


@dataclass(frozen=True)
class Whole:
    """What the tests ask of a model with all its layers, which takes seconds to lower."""

    kernels: list[str]
    report: LibraryReport
    planned: Mapping[str, int]


@cache
def whole(preset: str, quant: str) -> Whole:
    module = lowered(Gemma4Config.from_preset(preset), quant)
    with TARGET.tvm_target():
        passes = list(virtual_machine_passes(TARGET))
        until = [one.info.name for one in passes].index("StaticPlanBlockMemory") + 1
        planned = tvm.transform.Sequential(passes[:until])(module)
    functions = (abi.PREFILL, abi.EMBED, abi.DECODE)
    allocated = {function: planned_bytes(planned, function) for function in functions}
    return Whole(kernels(module), library_report(module), allocated)


@pytest.mark.parametrize(
    "preset", exhaustive_if(LARGER.__contains__, slow_unless(SPARSE.__eq__, GEMMA4))
)
def test_layers_share_their_kernels(preset: str) -> None:
    config = Gemma4Config.from_preset(preset)
    short = lowered(shortened(preset), "q4f16")
    assert whole(preset, "q4f16").kernels == kernels(short)
    report = whole(preset, "q4f16").report
    more_launches = report.launches_per_token - library_report(short).launches_per_token
    more_layers = config.num_hidden_layers - FEWER_LAYERS[preset][0]
    assert more_launches <= MOST_LAUNCHES[preset] * more_layers
    assert TARGET.max_binding_bytes is not None
    assert report.largest_binding_bytes <= TARGET.max_binding_bytes


@pytest.mark.parametrize("preset", slow_unless("gemma-4-E4B-it".__eq__, GEMMA4))
def test_kernels_of_a_drafter_and_of_few_rows_are_within_the_limits(preset: str) -> None:
    config = replace(shortened(preset), drafter=read_drafter(drafter_values(preset)))
    functions = {var.name_hint for var, _ in lowered(config, "q4f16").functions_items()}
    assert functions >= {abi.DRAFT, abi.VERIFY}


@pytest.mark.slow
@pytest.mark.parametrize("preset", exhaustive_if(LARGER.__contains__, GEMMA3N))
def test_streams_cost_few_launches(preset: str) -> None:
    """10 a layer, one more where gates are cut off or a combine is not fused, and the ends."""
    config = Gemma4Config.from_preset(preset)
    assert config.gemma3n is not None
    report = whole(preset, "q4f16").report
    cut_off = sum(share > 0 for share in config.gemma3n.sparsities)
    combines = config.layer_types.count("full_attention")
    assert report.launches_per_token <= 10 * config.num_hidden_layers + cut_off + combines + 20
    assert TARGET.max_binding_bytes is not None
    assert report.largest_binding_bytes <= TARGET.max_binding_bytes


def planned_bytes(module: tvm.IRModule, function: str) -> int:
    """What one call of a function allocates: planned storage, and tensors that it returns."""
    storage, tensor = map(
        tvm.ir.Op.get, ("relax.memory.alloc_storage", "relax.builtin.alloc_tensor")
    )
    total = 0

    def visit(node: Any) -> None:
        nonlocal total
        if isinstance(node, relax.Call) and node.op == storage:
            total += int(node.args[0].values[0])
        if isinstance(node, relax.Call) and node.op == tensor:
            size = 4
            for dimension in node.args[0].values:
                size *= CHUNK if getattr(dimension, "name", None) == "n" else int(dimension)
            total += size

    relax.analysis.post_order_visit(module[function].body, visit)
    return total


@pytest.mark.parametrize(
    ("preset", "quant"),
    exhaustive_if(
        lambda preset, _: preset in LARGER,
        slow_unless(
            lambda *pair: pair == (SPARSE, "q4f16"),
            [
                *((preset, "q4f16") for preset in (*GEMMA4, *GEMMA3N)),
                (SPARSE, "q4f32"),
            ],
        ),
    ),
)
def test_planned_memory_is_about_what_the_plan_estimates(preset: str, quant: str) -> None:
    config = Gemma4Config.from_preset(preset)
    allocated = whole(preset, quant).planned
    planned = allocated[abi.PREFILL] + allocated[abi.EMBED]
    estimated = make_plan(config, quant, TARGET, 8192, CHUNK).activation_bytes
    assert planned <= 1.15 * estimated
    assert estimated <= 1.5 * planned
    # A decoded token needs next to nothing beside it.
    assert allocated[abi.DECODE] < 0.1 * planned

"""Every released size exports from its config alone, with the right parameters and functions."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from math import prod
from typing import Any

import pytest
from tvm import relax, tirx

from gemma4_compile import abi
from gemma4_compile.compile.build import decoder_options, library_report
from gemma4_compile.model_spec.component import Exported
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.export import export_module
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.operators.examples import rows_of_table
from gemma4_compile.passes.fuse import fuse
from gemma4_compile.passes.lowering import lower
from gemma4_compile.quantization.matrix import StoredMatrices
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests.marks import slow_unless

pytestmark = pytest.mark.smoke

# Parameters of the language model as transformers 5.24.0 counts them on the meta device.
PARAMETERS = {
    "gemma-4-E2B-it": 4_628_569_379,
    "gemma-4-E4B-it": 7_463_013_418,
    "gemma-4-12B-it": 11_907_350_320,
    "gemma-4-26B-A4B-it": 25_233_141_790,
    "gemma-4-31B-it": 30_697_345_340,
    "gemma-4-E2B-it, untied": 5_031_222_563,
    "gemma-4-31B-it, untied": 32_106_631_484,
}
# Layers that own K and V, of them with a ring.
KV_LAYERS = {
    "gemma-4-E2B-it": (15, 12),
    "gemma-4-E4B-it": (24, 20),
    "gemma-4-12B-it": (48, 40),
    "gemma-4-26B-A4B-it": (30, 25),
    "gemma-4-31B-it": (60, 50),
    "gemma-4-E2B-it, untied": (15, 12),
    "gemma-4-31B-it, untied": (60, 50),
}
PREFILL_CHUNK = 512
UNTIED = ", untied"
# Every size in the usual recipe, and the other recipes with one size or two. `q4f16s` and `q4f16l`
# have no other functions than `q4f16`.
USUAL = "q4f16"
OF_RECIPES = [
    *(("gemma-4-E2B-it", recipe) for recipe in ("q4f32", "q4f16m")),
    *(("gemma-4-E4B-it", recipe) for recipe in ("q8f16", "q4kf16")),
    *(("gemma-4-12B-it", recipe) for recipe in ("f16", "q4kf16m")),
    *(("gemma-4-26B-A4B-it", recipe) for recipe in ("q4kf16m", "q8f16")),
    *(("gemma-4-31B-it", recipe) for recipe in ("q4f16m", "f32")),
    *(("gemma-4-E2B-it, untied", "q8f16"), ("gemma-4-31B-it, untied", "f32")),
]
EXPORTED = slow_unless(lambda preset: not preset.endswith(UNTIED), PARAMETERS)


def config_of(preset: str) -> Gemma4Config:
    name, _, untied = preset.partition(", ")
    file = resources.files("gemma4_compile.model_spec") / "presets" / f"{name}.json"
    return Gemma4Config.from_dict(
        {**json.loads(file.read_text()), "tie_word_embeddings": not untied}
    )


def planned(preset: str, recipe: str, limits: str = "default") -> tuple[StoredParameter, ...]:
    table = parameter_table(config_of(preset))
    return storage_plan(table, RECIPES[recipe], target_spec("webgpu", limits).max_binding_bytes)


@lru_cache(maxsize=8)
def exported(preset: str, recipe: str, limits: str = "default") -> Exported:
    options = decoder_options(RECIPES[recipe], target_spec("webgpu", limits), PREFILL_CHUNK)
    matrices = StoredMatrices(planned(preset, recipe, limits))
    return export_module(config_of(preset), matrices, options)


def _dimension(dim: Any) -> str:
    return str(int(dim)) if isinstance(dim, tirx.IntImm) else str(dim.name)


def argument_types(function: relax.Function) -> list[tuple[tuple[str, ...], str]]:
    """Shape and dtype of the tensor arguments; symbolic dimensions by name."""
    return [
        (tuple(_dimension(dim) for dim in param.ty.shape), str(param.ty.dtype))
        for param in function.params
        if isinstance(param.ty, relax.TensorType)
    ]


@pytest.mark.parametrize("preset", PARAMETERS)
def test_parameter_count_is_that_of_transformers(preset: str) -> None:
    table = parameter_table(config_of(preset))
    assert sum(prod(parameter.shape) for parameter in table) == PARAMETERS[preset]


@pytest.mark.parametrize(
    ("preset", "recipe"),
    slow_unless(
        lambda preset, recipe: recipe == USUAL and not preset.endswith(UNTIED),
        [*((preset, USUAL) for preset in PARAMETERS), *OF_RECIPES],
    ),
)
def test_parameters_of_the_module_are_those_of_the_plan(preset: str, recipe: str) -> None:
    made = exported(preset, recipe)
    module = made.module
    tensors = [tensor for stored in planned(preset, recipe) for tensor in stored.tensors]
    assert list(made.parameters) == [tensor.name for tensor in tensors]
    packed = module[abi.DECODE].params[-1].ty.fields
    found = [(tuple(_extent(dim) for dim in ty.shape), str(ty.dtype)) for ty in packed]
    assert found == [(tensor.shape, tensor.dtype) for tensor in tensors]


def _extent(dimension: tirx.PrimExpr) -> int:
    """That of a table is open, and names the rows of the whole."""
    whole = rows_of_table(dimension)
    return int(dimension) if whole is None else whole


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("preset", PARAMETERS)
def test_no_stored_tensor_exceeds_a_binding(preset: str, recipe: str) -> None:
    plan = planned(preset, recipe)
    limit = target_spec("webgpu").max_binding_bytes
    assert limit is not None
    assert max(tensor.nbytes for stored in plan for tensor in stored.tensors) <= limit
    for stored in plan:
        ends = [0, *(part.row_end for part in stored.row_splits)]
        assert [part.row_begin for part in stored.row_splits] == ends[:-1]
        assert ends[-1] == stored.parameter.shape[0]


@pytest.mark.parametrize("preset", EXPORTED)
def test_exported_functions_have_the_clients_signatures(preset: str) -> None:
    module = exported(preset, "q4f16").module
    config = config_of(preset)
    hidden, vocab = str(config.hidden_size), str(config.vocab_size)
    f32, i32 = "float32", "int32"
    expected = {
        abi.EMBED: [(("n",), i32)],
        abi.PREFILL: [(("1", "n", hidden), f32), (("1", "n"), i32), (("1", "n"), i32)],
        abi.DECODE: [(("1", "1"), i32)],
        abi.CREATE_KV_CACHE: [],
        abi.SOFTMAX: [(("1", "1", vocab), f32), (("1",), f32)],
        abi.ARGSORT: [(("1", vocab), f32)],
        abi.SAMPLE_TOP_P: [(("1", vocab), f32)] * 2 + [(("1",), f32), (("1",), i32), (("1",), f32)],
        abi.LOGIT_BIAS: [(("1", vocab), f32), (("n",), i32), (("n",), i32), (("n",), f32)],
        abi.PENALTY: [(("1", vocab), f32), (("m",), i32), *[(("n",), i32)] * 3, (("m", "3"), f32)],
        abi.BITMASK: [
            (("1", vocab), f32),
            (("1",), i32),
            (("1", str(config.vocab_size // 32)), i32),
        ],
    }
    for name, arguments in expected.items():
        assert argument_types(module[name]) == arguments, name
    logits = module[abi.DECODE].ret_ty.fields[0]
    assert [int(dim) for dim in logits.shape] == [1, 1, config.vocab_size]


@pytest.mark.parametrize("preset", EXPORTED)
def test_kv_state_has_a_slot_only_for_layers_that_own_keys(preset: str) -> None:
    module = exported(preset, "q4f16").module
    shapes: list[list[int]] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.ShapeExpr) and isinstance(node.values[0], tirx.IntImm):
            shapes.append([int(value) for value in node.values])

    relax.analysis.post_order_visit(module[abi.CREATE_KV_CACHE].body, visit)
    flat = shapes[0]
    slots = [flat[i : i + 4] for i in range(0, len(flat), 4)]
    assert (len(slots), sum(rows > 0 for _, _, rows, _ in slots)) == KV_LAYERS[preset]
    config = config_of(preset)
    for rows, window in ((slot[2], slot[3]) for slot in slots):
        assert (rows > 0) == (window > 0)
        if window:
            assert window == config.sliding_window
            assert rows >= window + PREFILL_CHUNK - 1


@pytest.mark.parametrize("preset", [one for one in EXPORTED if "E2B" in one.values[0]])
def test_all_kernels_are_scheduled_within_the_limits(preset: str) -> None:
    target = target_spec("webgpu", "compat")
    module = fuse(exported(preset, "q4f16", "compat").module, target)
    report = library_report(lower(module, target))
    assert target.max_binding_bytes is not None
    assert report.largest_binding_bytes <= target.max_binding_bytes
    assert report.launches_per_token < 440

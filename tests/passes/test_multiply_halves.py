"""Before and Expected of a chunk's matmuls whose kernels multiply float16."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile.operators.activation_quantization import quantized_specs
from gemma4_compile.operators.activations import (
    FLOATS,
    HALVED,
    HALVED_INT8,
    INT8,
    PACKED,
    SCALED_HALVES,
    Activations,
)
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.halved_rows import HalveRows, halved_specs
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.rows import CHUNK, Few, Rows
from gemma4_compile.passes.fusion_limits import FusionLimits, fusion_limits
from gemma4_compile.passes.multiply_halves import multiply_halves
from gemma4_compile.targets import spec, target_spec
from tests.numerics.emulated_matrices import OF_ALL_ROWS
from tests.passes.operator_modules import F32, Tensors, assert_same, call, module, rewritten
from tests.passes.operator_modules import weights as weights_of

N = tirx.Var("n", "int64")
WIDTH, ROWS, EXPERTS, TOP_K = 64, 48, 4, 2
GROUPS = WeightLayout(4, "float16", 32, WIDTH, (ROWS,))
WIDE_GROUPS = WeightLayout(4, "float32", 32, WIDTH, (ROWS,))
MINIMA = MinimaLayout(4, "uint32", 32, WIDTH, (ROWS,))
TUNED = target_spec("webgpu", "h200-matrices")
TARGET = replace(TUNED, tuning=replace(TUNED.tuning, subgroup_matrices=OF_ALL_ROWS))
LIMITS = fusion_limits(TARGET)
WORDS, SCALES = quantized_specs(WIDTH, N)


def matmul(
    layout: WeightLayout, activations: Activations, rows: Rows = CHUNK, *, halves: bool = True
) -> tvm.IRModule:
    """A module of one matmul on packed rows; beside it a norm's weights, of float16 or not."""
    inputs = {"words": WORDS, "scales": SCALES, **weights_of(layout)}
    inputs["other"] = ((WIDTH, WIDTH), "float16" if halves else F32)

    def body(x: Tensors) -> list[nn.Tensor]:
        operator = Linear(rows, layout, PACKED, activations=activations)
        tensors = [x[name] for name, _, _ in layout.shapes()]
        left = [x["words"], x["scales"]]
        if activations == SCALED_HALVES:
            halve = HalveRows(rows, WIDTH, operator.interleaved)
            left = call(halve, left, *halved_specs(WIDTH, N))
        result = call(operator, [*left, *tensors], ((N, ROWS), F32))
        dtype = str(x["other"].dtype)
        other = Linear(CHUNK, WeightLayout(0, dtype, 0, WIDTH, (WIDTH,)), F32)
        return [*result, *call(other, [x["wide"], x["other"]], ((N, WIDTH), F32))]

    return module({**inputs, "wide": ((N, WIDTH), F32)}, body)


@pytest.mark.parametrize("layout", [GROUPS, MINIMA], ids=["groups", "minima"])
def test_a_chunks_matmul_multiplies_float16(layout: WeightLayout) -> None:
    after = rewritten(matmul(layout, INT8), LIMITS, multiply_halves)
    assert_same(after, matmul(layout, SCALED_HALVES))


def test_packed_rows_are_multiplied_where_no_launch_makes_them_float16() -> None:
    limits = replace(LIMITS, halves_rows=False)
    after = rewritten(matmul(GROUPS, INT8), limits, multiply_halves)
    assert_same(after, matmul(GROUPS, HALVED_INT8))


def test_rows_of_a_matrix_in_parts_become_float16_once() -> None:
    operator = Linear(CHUNK, GROUPS, PACKED, activations=INT8)
    inputs = {"words": WORDS, "scales": SCALES, **weights_of(GROUPS)}

    def made(halves: bool) -> tvm.IRModule:
        def body(x: Tensors) -> list[nn.Tensor]:
            left, own = [x["words"], x["scales"]], operator
            if halves:
                own = replace(operator, activations=SCALED_HALVES)
                left = call(HalveRows(CHUNK, WIDTH, True), left, *halved_specs(WIDTH, N))
            tensors = [x[name] for name, _, _ in GROUPS.shapes()]
            parts = [call(own, [*left, *tensors], ((N, ROWS), F32)) for _ in range(2)]
            return [result for part in parts for result in part]

        return module(inputs, body)

    assert_same(rewritten(made(False), LIMITS, multiply_halves), made(True))


@pytest.mark.parametrize(
    ("layout", "rows", "halves", "limits"),
    [
        (GROUPS, CHUNK, True, fusion_limits(target_spec("webgpu", "h200"))),
        (GROUPS, CHUNK, True, fusion_limits(replace(TARGET, float16=spec.WORDS))),
        (GROUPS, CHUNK, True, FusionLimits(None)),
        (GROUPS, Few(9), True, LIMITS),
        (WIDE_GROUPS, CHUNK, True, LIMITS),
        (MINIMA, CHUNK, False, LIMITS),
        (GROUPS, CHUNK, True, fusion_limits(TUNED)),
    ],
    ids=[
        "no matrices",
        "float16 as words",
        "a CPU",
        "few rows",
        "scales in float32",
        "nothing in float16",
        "too few rows for tiles",
    ],
)
def test_others_stay(layout: WeightLayout, rows: Rows, halves: bool, limits: FusionLimits) -> None:
    before = matmul(layout, INT8, rows, halves=halves)
    assert_same(rewritten(before, limits, multiply_halves), before)


def floats(layout: WeightLayout, activations: Activations, rows: Rows, dtype: str) -> tvm.IRModule:
    """A module of one matmul on floats; beside it a matrix of float16."""
    inputs = {"x": ((N, WIDTH), dtype), **weights_of(layout)}
    beside = WeightLayout(0, "float16", 0, WIDTH, (WIDTH,))

    def body(x: Tensors) -> list[nn.Tensor]:
        operator = Linear(rows, layout, dtype, activations=activations)
        tensors = [x[name] for name, _, _ in layout.shapes()]
        result = call(operator, [x["x"], *tensors], ((N, ROWS), F32))
        other = Linear(Few(9), beside, F32)
        return [*result, *call(other, [x["wide"], x["other"]], ((N, WIDTH), F32))]

    return module({**inputs, "wide": ((N, WIDTH), F32), "other": ((WIDTH, WIDTH), "float16")}, body)


TENSORS = fusion_limits(target_spec("metal", "tensors"))


@pytest.mark.parametrize("layout", [GROUPS, MINIMA], ids=["groups", "minima"])
@pytest.mark.parametrize("dtype", ["float16", F32])
def test_floats_of_a_chunk_are_multiplied_by_float16(layout: WeightLayout, dtype: str) -> None:
    after = rewritten(floats(layout, FLOATS, CHUNK, dtype), TENSORS, multiply_halves)
    assert_same(after, floats(layout, HALVED, CHUNK, dtype))


@pytest.mark.parametrize(
    ("layout", "rows", "limits"),
    [
        (GROUPS, CHUNK, fusion_limits(target_spec("metal", "simdgroups"))),
        (GROUPS, Few(9), TENSORS),
        (WIDE_GROUPS, CHUNK, TENSORS),
    ],
    ids=["no tensor operations", "few rows", "scales in float32"],
)
def test_other_floats_stay(layout: WeightLayout, rows: Rows, limits: FusionLimits) -> None:
    before = floats(layout, FLOATS, rows, "float16")
    assert_same(rewritten(before, limits, multiply_halves), before)


def test_experts_of_a_chunk_multiply_float16() -> None:
    layout = WeightLayout(4, "float16", 32, WIDTH, (ROWS * EXPERTS,))
    inputs = {
        "words": WORDS,
        "scales": SCALES,
        "order": ((N * TOP_K,), "int32"),
        "tiles": ((N * TOP_K // 32 + EXPERTS, 3), "int32"),
        **weights_of(layout),
    }

    def made(activations: Activations) -> tvm.IRModule:
        operator = ExpertLinear(
            layout, ROWS, EXPERTS, TOP_K, PACKED, CHUNK, activations=activations
        )
        result = ((N * TOP_K, ROWS // 2), F32)
        return module(inputs, lambda x: call(operator, list(x.values()), result))

    assert_same(rewritten(made(INT8), LIMITS, multiply_halves), made(HALVED_INT8))

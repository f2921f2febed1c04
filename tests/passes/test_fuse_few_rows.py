"""Before and Expected of matmuls of a few rows with what is before and after them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.operators.activation_quantization import QuantizeRows, quantized_specs
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.few_row_attention import FewRowAttention
from gemma4_compile.operators.few_row_linear import (
    Int8CombinedFewRowLinear,
    Int8FewRowLinear,
    Int8NormedFewRowLinear,
)
from gemma4_compile.operators.int8_linear import PACKED, Int8Linear
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.passes.few_rows import few_rows
from gemma4_compile.passes.fuse_few_rows import fuse_few_rows
from gemma4_compile.targets.tuning import FusionTuning
from tests.passes.operator_modules import (
    F32,
    Tensors,
    assert_same,
    call,
    kinds,
    module,
    rewritten,
    weights,
)
from tests.passes.test_few_rows import LIMITS, MOST, NORM_INPUTS, PACKED_SPECS, ROWS, N, of_few_rows

PRODUCT = WeightLayout(4, "float16", 32, 64, (128,))
DOWN = WeightLayout(8, "float16", 32, 64, (40,))


@pytest.mark.parametrize("reason", ["", "wide", "buffers", "read twice", "no groups"])
def test_gate_and_up_round_their_product(reason: str) -> None:
    rows = 144 if reason == "no groups" else 128
    layout = replace(PRODUCT, split_rows=(rows,))
    down_layout = replace(DOWN, cols=rows // 2)
    packed = dict(zip(("words", "scales"), quantized_specs(64, N), strict=True))
    down_weights = {f"down_{name}": spec for name, spec in weights(down_layout).items()}
    inputs = {**packed, **weights(layout), **down_weights}
    gate_up: dict[str, Any] = {"epilogue": "gelu_pairs"}
    product = ((N, rows // 2), F32)

    def down(x: Tensors, multiply: Int8Linear, rounded: list[nn.Tensor]) -> list[nn.Tensor]:
        return call(multiply, [*rounded, *(x[name] for name in down_weights)], ((N, 40), F32))

    def before(x: Tensors) -> list[nn.Tensor]:
        args = [x[name] for name in (*packed, *weights(layout))]
        (y,) = call(Int8Linear(None, layout, PACKED, **gate_up), args, product)
        rounding = QuantizeRows(None, rows // 2, F32, False)
        rounded = call(rounding, [y], *quantized_specs(rows // 2, N))
        return [
            *down(x, Int8Linear(None, down_layout, PACKED), rounded),
            *([y] if reason == "read twice" else []),
        ]

    def expected(x: Tensors) -> list[nn.Tensor]:
        args = [x[name] for name in (*packed, *weights(layout))]
        operator = Int8FewRowLinear(
            None, layout, PACKED, **gate_up, packed_out=True, most_rows=MOST
        )
        rounded = call(operator, args, *quantized_specs(rows // 2, N))
        multiply = Int8FewRowLinear(None, down_layout, PACKED, most_rows=MOST)
        return down(x, multiply, rounded)

    tuning = FusionTuning(
        few_row_product_width=32 if reason == "wide" else 64, few_row_rounding_width=0
    )
    most = 5 if reason == "buffers" else 6
    limits = replace(LIMITS, tuning=tuning, max_buffers=most)
    after = rewritten(of_few_rows(module(inputs, before)), limits, few_rows, fuse_few_rows)
    if reason:
        assert "quantize_rows" in kinds(after)
    else:
        assert_same(after, of_few_rows(module(inputs, expected)))


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("reason", ["", "tuning", "memory", "weights", "buffers", "read before"])
def test_a_matmul_norms_its_rows_itself(reason: str, normed: bool) -> None:
    names = [name for name in NORM_INPUTS if normed or name != "w_next"]
    inputs = {**{name: NORM_INPUTS[name] for name in names}, **weights(DOWN)}

    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(None, 64, 1e-6, False, F32 if normed else None)
        results = call(norm, [x[name] for name in names], *([ROWS, ROWS] if normed else [ROWS]))
        packed = call(QuantizeRows(None, 64, F32, False), [results[-1]], *PACKED_SPECS)
        early = []
        if reason == "read before":
            later = ResidualNorm(None, 64, 1e-6, False, None)
            early = call(later, [results[0], x["residual"], x["w_branch"]], ROWS)
        multiply = Int8Linear(None, DOWN, PACKED)
        args = [*packed, *(x[name] for name in weights(DOWN))]
        return [results[0], *early, *call(multiply, args, ((N, 40), F32))]

    def expected(x: Tensors) -> list[nn.Tensor]:
        multiply = Int8NormedFewRowLinear(None, DOWN, F32, most_rows=MOST, eps=1e-6, normed=normed)
        return call(multiply, [x[name] for name in inputs], ROWS, ((N, 40), F32))

    tuning = FusionTuning(
        few_row_norm_width=32 if reason == "tuning" else 64,
        max_int8_weights=40 * 64 - (reason == "weights"),
        few_row_rounding_width=0,
    )
    limits = replace(
        LIMITS,
        tuning=tuning,
        few_row_width=32 if reason == "memory" else 64,
        max_buffers=len(inputs) + (1 if reason == "buffers" else 2),
    )
    after = rewritten(of_few_rows(module(inputs, before)), limits, few_rows, fuse_few_rows)
    if reason:
        assert "int8_few_row_linear" in kinds(after)
    else:
        assert_same(after, of_few_rows(module(inputs, expected)))


@pytest.mark.parametrize("reason", ["", "bytes", "splits", "memory", "buffers"])
def test_a_matmul_combines_splits_itself(reason: str) -> None:
    cache, q = ((64, 2, 32), F32), ((N, 64), F32)
    own = {"q": q, "key": cache, "value": cache, "positions": ((4,), "int32")}
    inputs = {**own, **weights(DOWN)}

    def before(x: Tensors) -> list[nn.Tensor]:
        operator = PrefillAttention(None, 2, 2, 32, None, F32, 64)
        attended = call(operator, [x[name] for name in own], q)
        packed = call(QuantizeRows(None, 64, F32, False), attended, *PACKED_SPECS)
        multiply = Int8Linear(None, DOWN, PACKED)
        return call(multiply, [*packed, *(x[name] for name in weights(DOWN))], ((N, 40), F32))

    def expected(x: Tensors) -> list[nn.Tensor]:
        attention = FewRowAttention(
            rows=None, heads=2, kv_heads=2, head_dim=32, window=None, cache_dtype=F32,
            cache_rows=64, splits=2, most_rows=MOST,
        )  # fmt: skip
        results = ((N, 2, 2, 32), F32), ((N, 2, 2, 2), F32)
        splits = call(attention, [x[name] for name in own], *results)
        multiply = Int8CombinedFewRowLinear(
            None, DOWN, F32, most_rows=MOST, heads=2, head_dim=32, splits=2
        )
        return call(multiply, [*splits, *(x[name] for name in weights(DOWN))], ((N, 40), F32))

    tuning = FusionTuning(
        few_row_combine_bytes=2 * 64 * 4 - (reason == "bytes"),
        max_combined_splits=1 if reason == "splits" else 2,
    )
    limits = replace(
        LIMITS,
        few_rows=AttentionOptions(sliding_splits=1, full_splits=2),
        tuning=tuning,
        few_row_width=32 if reason == "memory" else 64,
        max_buffers=4 if reason == "buffers" else 6,
    )
    after = rewritten(of_few_rows(module(inputs, before)), limits, few_rows, fuse_few_rows)
    if reason:
        assert kinds(after)[1:] == ["quantized_few_row_combine", "int8_few_row_linear"]
    else:
        assert_same(after, of_few_rows(module(inputs, expected)))

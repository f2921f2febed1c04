"""One position around its experts: what matmuls do beside their own work, against float64."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import pytest

from gemma4_compile.operators.activations import PACKED, PackedOutput
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.moe import RouterScores, TopKExperts
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Norm, Routed
from gemma4_compile.operators.rows import ONE, Rows
from tests.matmuls import int8_linear
from tests.numerics.definitions import run, values
from tests.numerics.linear.test_activation_quantization import packed, rounded
from tests.numerics.linear.test_linear import COLS, GROUP, close, gelu, stored
from tests.numerics.moe.test_experts import (
    EPS,
    EXPERTS,
    TOP_K,
    WIDTH,
    behind_experts,
    behind_scores,
    rms,
)


class Fields(TypedDict):
    """What every matmul has."""

    rows: Rows
    layout: WeightLayout
    in_dtype: str


def scored(residual: Any, vectors: Any, projection: Any) -> Any:
    """What `RouterScores` makes of a residual, in float64."""
    width = residual.shape[1]
    scores = rms(residual) * vectors[2] * width**-0.5 @ projection.astype(np.float64).T
    return behind_scores(scores, rms(residual) * vectors[3])


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("experts", [5, EXPERTS])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_scores_and_the_experts_input_are_one_buffer(dtype: str, experts: int, size: float) -> None:
    x, vectors = values(1, 1, WIDTH, deviation=size), values(2, 4, WIDTH)
    projection = values(5, experts, WIDTH).astype(dtype)
    expected = scored(x, vectors, projection)
    routed = np.full_like(expected, np.nan)
    run(RouterScores(WIDTH, experts, EPS, WIDTH**-0.5, dtype), x, vectors, projection, routed)
    close(routed, expected)

    ids, weights = np.zeros((1, TOP_K), np.int32), np.zeros((1, TOP_K), np.float32)
    expert_scale = 1 + values(3, experts) / 5
    run(TopKExperts(experts, TOP_K, WIDTH), routed, expert_scale, ids, weights)
    best = np.argsort(-expected[0, :experts])[:TOP_K]
    assert ids[0].tolist() == best.tolist()
    shares = np.exp(expected[0, best] - expected[0, best[0]])
    np.testing.assert_allclose(weights[0], shares / shares.sum() * expert_scale[best], rtol=2e-5)


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("form", ["exact", "float16", "int8", "packed"])
def test_the_dense_gate_and_up_have_the_router_next_to_them(form: str, size: float) -> None:
    rows = 64
    tensors, matrix = stored(4, "float16", (rows,))
    branch, residual = values(1, 1, COLS, deviation=size), values(2, 1, COLS, deviation=size)
    vectors, projection = values(3, 4, COLS), values(4, 6, COLS).astype(np.float16)
    layout: Fields = {
        "rows": ONE,
        "layout": WeightLayout(4, "float16", GROUP, COLS, (rows,)),
        "in_dtype": "float16" if form == "float16" else "float32",
    }
    router = Routed(EPS, 6, COLS**-0.5, "float16")
    pairs = Epilogue.GELU_PAIRS.value
    total = residual + rms(branch) * vectors[0]
    expected = scored(total, vectors, projection)
    out, routed = np.zeros((1, COLS), np.float32), np.full_like(expected, np.nan)
    y = np.zeros((1, rows // 2), np.float32)
    words, scales = np.zeros((1, rows // 8), np.uint32), np.zeros((1, rows // 64), np.float32)

    args = [branch, residual, vectors, projection, *tensors, out, routed]
    if form == "packed":
        operator = int8_linear(**layout, epilogue=pairs, packed_out=True, prologue=router)
        run(operator, *args, words, scales)
    elif form == "int8":
        run(int8_linear(**layout, epilogue=pairs, prologue=router), *args, y)
    else:
        run(Linear(**layout, epilogue=pairs, prologue=router), *args, y)

    np.testing.assert_allclose(out, total, rtol=1e-5, atol=1e-5 * size)
    close(routed, expected)
    x = (rms(total) * vectors[1]).astype(np.float32)
    if form == "float16":
        x = x.astype(np.float16)
    sums = (rounded(x) if form in ("int8", "packed") else x.astype(np.float64)) @ matrix.T
    gated = gelu(sums[:, 0::2]) * sums[:, 1::2]
    if form == "packed":
        expected_words, expected_scales = packed(gated, False)
        np.testing.assert_array_equal(words, expected_words)
        np.testing.assert_allclose(scales, expected_scales, rtol=1e-5)
    else:
        close(y, gated)


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("form", ["exact", "float16", "int8", "packed"])
def test_the_next_matmul_norms_both_branches_by_itself(form: str, size: float) -> None:
    tensors, matrix = stored(4, "float16", (40,))
    dense, experts = values(1, 1, COLS, deviation=size), values(2, 1, COLS)
    residual = values(3, 1, COLS, deviation=size)
    w_branches, w_next, scalar = values(4, 3, COLS), values(5, COLS), np.array([0.09], np.float32)
    layout: Fields = {
        "rows": ONE,
        "layout": WeightLayout(4, "float16", GROUP, COLS, (40,)),
        "in_dtype": "float16" if form == "float16" else "float32",
    }
    args = [dense, experts, residual, w_branches, scalar, w_next]
    out, y = np.zeros((1, COLS), np.float32), np.zeros((1, 40), np.float32)

    if form == "packed":
        words, scales = np.zeros((1, COLS // 4), np.uint32), np.zeros((1, COLS // 32), np.float32)
        run(
            ResidualNorm(ONE, COLS, EPS, True, "float32", branches=2, output=PackedOutput(True)),
            *args,
            out,
            words,
            scales,
        )
        layout["in_dtype"] = PACKED
        run(int8_linear(**layout), words, scales, *tensors, y)
    else:
        kind = int8_linear if form == "int8" else Linear
        norm = Norm(EPS, scaled=True, count=2)
        run(kind(**layout, prologue=norm), *args, *tensors, out, y)

    total = behind_experts(dense, experts, residual, w_branches) * scalar
    np.testing.assert_allclose(out, total, rtol=1e-5, atol=1e-5 * size)
    x = rms(total.astype(np.float32)) * w_next
    if form == "float16":
        x = x.astype(np.float32).astype(np.float16).astype(np.float64)
    close(y, (x if form in ("exact", "float16") else rounded(x)) @ matrix.T)

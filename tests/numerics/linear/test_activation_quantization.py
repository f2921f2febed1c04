"""Vectors rounded to int8 and matmuls on them: definitions against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.activations import INT8, PACKED, PackedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Combine, Norm
from gemma4_compile.operators.rows import ONE
from tests.matmuls import int8_linear
from tests.numerics.attention.test_attention import EPS, normed
from tests.numerics.definitions import combined_heads, run, values
from tests.numerics.linear.test_linear import COLS, close, gelu, stored

Float64Array = npt.NDArray[np.float64]
INTERLEAVED = [0, 2, 1, 3]  # channel of each byte of a word
# float32 and float64 fall on different sides of a rounding edge once in about 1e4 channels.
SEED = 3


def units(x: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Integers and scales of a vector, as operators/activation_quantization.py defines them."""
    groups = x.astype(np.float32).reshape(-1, GROUP)
    largest = np.abs(groups).max(axis=1)
    factor = np.where(largest > 1e-30, np.float32(127) / np.maximum(largest, 1e-30), 0)
    integers = np.floor(groups * factor[:, None].astype(np.float32) + np.float32(0.5))
    scales = np.where(largest > 1e-30, largest * np.float32(1 / 127), 0).astype(np.float32)
    return integers.astype(np.int8).reshape(-1), scales


def rounded(x: npt.NDArray[Any]) -> Float64Array:
    integers, scales = units(x)
    return (integers.astype(np.float64) * np.repeat(scales, GROUP).astype(np.float64))[None, :]


def packed(x: npt.NDArray[Any], interleaved: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Words (1, width / 4) and scales (1, width / 32)."""
    integers, scales = units(x)
    quads = integers.reshape(-1, 4)
    if interleaved:
        quads = quads[:, INTERLEAVED]
    return np.ascontiguousarray(quads).view(np.uint32).reshape(1, -1), scales[None, :]


def empty(width: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return np.zeros((1, width // 4), np.uint32), np.zeros((1, width // GROUP), np.float32)


def linear(kind: Callable[..., Linear], bits: int, rows: int, cols: int, **fields: Any) -> Any:
    return kind(
        rows=ONE,
        layout=WeightLayout(bits, "float16", GROUP, cols, (rows,)),
        **{"in_dtype": "float32", **fields},
    )


@pytest.mark.parametrize("dtype", [PACKED, "float16", "float32"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_matrix_times_a_rounded_vector(bits: int, dtype: str) -> None:
    tensors, matrix = stored(bits, "float16", (40,))
    x = values(SEED, 1, COLS)
    x = x if dtype == PACKED else x.astype(dtype)
    args = packed(x, bits == 4) if dtype == PACKED else (x,)
    y = np.zeros((1, 40), np.float32)

    run(linear(int8_linear, bits, 40, COLS, in_dtype=dtype), *args, *tensors, y)

    close(y, rounded(x) @ matrix.T)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-4, 1e5, 1e30])
def test_vectors_of_any_size_are_rounded_to_finite_values(size: float) -> None:
    tensors, matrix = stored(4, "float16", (40,))
    x = values(SEED, 1, COLS, deviation=size)
    x[0, GROUP : 2 * GROUP] = 0.0
    x[0, 5] = -x[0, :GROUP].max() * 2
    y = np.zeros((1, 40), np.float32)

    run(linear(int8_linear, 4, 40, COLS), x, *tensors, y)

    expected = rounded(x) @ matrix.T
    assert np.isfinite(y).all()
    assert (np.abs(expected).max() > 0) == (size > 1e-30)
    close(y, expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_gate_and_up_leave_a_packed_product(interleaved: bool) -> None:
    rows = 192
    tensors, matrix = stored(4, "float16", (rows,))
    x = values(SEED, 1, COLS)
    words, scales = empty(rows // 2)
    fields = {
        "packed_out": True,
        "interleaved_out": interleaved,
        "epilogue": Epilogue.GELU_PAIRS.value,
    }

    run(linear(int8_linear, 4, rows, COLS, **fields), x, *tensors, words, scales)

    sums = rounded(x) @ matrix.T
    expected_words, expected_scales = packed(gelu(sums[:, 0::2]) * sums[:, 1::2], interleaved)
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_allclose(scales, expected_scales, rtol=1e-5)


@pytest.mark.parametrize("normed_input", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e5])
def test_norm_rounding_and_matmul_in_one(size: float, scaled: bool, normed_input: bool) -> None:
    tensors, matrix = stored(4, "float16", (40,))
    branch, residual = values(1, 1, COLS, deviation=size), values(2, 1, COLS, deviation=size)
    w_branch, w_next = values(3, COLS), values(4, COLS)
    args = [branch, residual, w_branch]
    args += [np.array([0.3], np.float32)] if scaled else []
    args += [w_next] if normed_input else []
    out, y = np.zeros((1, COLS), np.float32), np.zeros((1, 40), np.float32)

    run(
        linear(int8_linear, 4, 40, COLS, prologue=Norm(EPS, scaled, normed_input)),
        *args,
        *tensors,
        out,
        y,
    )

    total = (residual + normed(branch) * w_branch) * (0.3 if scaled else 1.0)
    np.testing.assert_allclose(out, total, rtol=1e-5, atol=1e-5 * size)
    x = normed(total.astype(np.float32)) * w_next if normed_input else total
    close(y, rounded(x) @ matrix.T)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_norm_leaves_a_packed_vector(interleaved: bool) -> None:
    branch, residual = values(1, 1, COLS), values(2, 1, COLS)
    w_branch, w_next, scalar = values(3, COLS), values(4, COLS), np.array([0.3], np.float32)
    out, (words, scales) = np.zeros((1, COLS), np.float32), empty(COLS)

    operator = ResidualNorm(ONE, COLS, EPS, True, "float32", output=PackedOutput(interleaved))
    run(operator, branch, residual, w_branch, scalar, w_next, out, words, scales)

    total = (residual + normed(branch) * w_branch) * 0.3
    np.testing.assert_allclose(out, total, rtol=1e-5, atol=1e-5)
    expected_words, expected_scales = packed(normed(total.astype(np.float32)) * w_next, interleaved)
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_allclose(scales, expected_scales, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_combined_splits_are_rounded(dtype: str) -> None:
    heads, dim, splits = 3, 32, 4
    tensors, matrix = stored(4, "float16", (40,), cols=heads * dim)
    o_partial, split_lse = values(1, splits, heads, dim).astype(dtype), values(2, splits, heads, 2)
    split_lse[..., 0] *= 10
    split_lse[..., 1] = np.abs(split_lse[..., 1]) + 0.5
    words, scales = empty(heads * dim)
    y = np.zeros((1, 40), np.float32)
    operator = linear(
        int8_linear, 4, 40, heads * dim, in_dtype=dtype, prologue=Combine(heads, dim, splits)
    )

    run(
        CombineSplits(heads, dim, splits, dtype, output=PackedOutput(True)),
        o_partial,
        split_lse,
        words,
        scales,
    )
    run(operator, o_partial, split_lse, *tensors, y)

    merged = combined_heads(o_partial, split_lse)
    expected_words, expected_scales = packed(merged, True)
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_allclose(scales, expected_scales, rtol=1e-5)
    close(y, rounded(merged) @ matrix.T)


def test_chosen_experts_in_int8() -> None:
    experts, top_k, width = 5, 2, 64
    gate_up, gate_up_matrix = stored(4, "float16", (2 * width * experts,))
    down, down_matrix = stored(4, "float16", (COLS * experts,), cols=width)
    x, ids = values(SEED, 1, COLS), np.zeros((1, top_k), np.int32)
    scores = np.array([[-1.0, 0.5, 0.25, 1.5, 0.5]], np.float32)  # of equals the lower index
    expert_scale = np.array([3, 0.5, 3, 0.75, 3], np.float32)
    words = np.zeros((top_k, width // 4), np.uint32)
    scales = np.zeros((top_k, width // GROUP), np.float32)
    y = np.zeros((1, COLS), np.float32)

    first = ExpertLinear(
        layout=WeightLayout(4, "float16", GROUP, COLS, (2 * width * experts,)),
        experts=experts,
        expert_rows=2 * width,
        top_k=top_k,
        in_dtype="float32",
        activations=INT8,
        output=PackedOutput(True),
    )
    second = ExpertLinear(
        layout=WeightLayout(4, "float16", GROUP, width, (COLS * experts,)),
        experts=experts,
        expert_rows=COLS,
        top_k=top_k,
        in_dtype=PACKED,
        activations=INT8,
        epilogue="none",
    )
    routed = np.concatenate([scores, np.zeros((1, 3), np.float32), x], axis=1)  # x from 8 on
    run(first, routed, *gate_up, words, scales, ids)
    run(second, words, scales, ids, routed, expert_scale, *down, y)

    np.testing.assert_array_equal(ids, [[3, 1]])
    shares = np.exp(scores[0, [3, 1]])
    chosen = shares / shares.sum() * expert_scale[[3, 1]]
    expected = np.zeros((1, COLS))
    for k, expert in enumerate(ids[0]):
        rows = gate_up_matrix[2 * width * expert : 2 * width * (expert + 1)]
        sums = rounded(x) @ rows.T
        gated = gelu(sums[:, 0::2]) * sums[:, 1::2]
        expected_words, expected_scales = packed(gated, True)
        np.testing.assert_array_equal(words[k : k + 1], expected_words)
        np.testing.assert_allclose(scales[k : k + 1], expected_scales, rtol=1e-5)
        matrix = down_matrix[COLS * expert : COLS * (expert + 1)]
        expected += chosen[k] * (rounded(gated) @ matrix.T)
    close(y, expected)

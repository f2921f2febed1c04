"""The fused operators of a decode step, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.attention_splits import LOWEST, CombineSplits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.prologues import Combine, Norm
from gemma4_compile.operators.rows import ONE
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from tests.numerics.attention.test_attention import (
    DIM,
    EPS,
    HEADS,
    KV_HEADS,
    STEPS,
    Case,
    attend,
    fill,
    normed,
    rotate,
)
from tests.numerics.definitions import ROUNDED, combined_heads, run, values
from tests.numerics.linear.test_linear import COLS, GROUP, close, gelu, stored

PLE_WIDTH = 3 * 32


def normed_linear(epilogue: Epilogue, scaled: bool, normed_input: bool, in_dtype: str) -> Linear:
    return Linear(
        rows=ONE,
        layout=WeightLayout(4, "float16", GROUP, COLS, (32,)),
        in_dtype=in_dtype,
        epilogue=epilogue.value,
        cap=30.0,
        ple_width=PLE_WIDTH if epilogue is Epilogue.GELU_GATE else 0,
        prologue=Norm(eps=EPS, scaled=scaled, normed=normed_input),
    )


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("epilogue", [Epilogue.NONE, Epilogue.GELU_PAIRS, Epilogue.SOFTCAP])
def test_norm_residual_and_matmul_in_one(epilogue: Epilogue, scaled: bool, size: float) -> None:
    tensors, matrix = stored(4, "float16", (32,))
    branch, residual = values(1, 1, COLS, deviation=size), values(2, 1, COLS, deviation=size)
    w_branch, w_next = values(3, COLS), values(4, COLS)
    scalar = [np.array([0.3], np.float32)] if scaled else []
    operator = normed_linear(epilogue, scaled, True, "float32")
    out, y = np.zeros((1, COLS), np.float32), np.zeros((1, operator.outputs), np.float32)

    run(operator, branch, residual, w_branch, *scalar, w_next, *tensors, out, y)

    total = (residual + normed(branch) * w_branch) * (0.3 if scaled else 1.0)
    np.testing.assert_allclose(out, total, rtol=1e-5, atol=1e-5 * size)
    sums = (normed(total.astype(np.float32)) * w_next) @ matrix.T
    outcomes: dict[Epilogue, Callable[[], npt.NDArray[np.float64]]] = {
        Epilogue.NONE: lambda: sums,
        Epilogue.GELU_PAIRS: lambda: gelu(sums[:, 0::2]) * sums[:, 1::2],
        Epilogue.SOFTCAP: lambda: 30 * np.tanh(sums / 30),
    }
    close(y, outcomes[epilogue]())


def test_the_gate_takes_the_residual_itself() -> None:
    tensors, matrix = stored(4, "float16", (32,))
    branch, residual = values(1, 1, COLS), values(2, 1, COLS, deviation=1e5)
    w_branch, ple = values(3, COLS), values(5, 1, PLE_WIDTH)
    operator = normed_linear(Epilogue.GELU_GATE, False, False, "float32")
    out, y = np.zeros((1, COLS), np.float32), np.zeros((1, 32), np.float32)

    run(operator, branch, residual, w_branch, *tensors, ple, 2, out, y)

    total = residual + normed(branch) * w_branch
    close(y, gelu(total @ matrix.T) * ple[:, 64:96])


def test_the_normed_input_is_rounded_to_the_activation_dtype() -> None:
    tensors, matrix = stored(4, "float16", (32,))
    branch, residual = values(1, 1, COLS), values(2, 1, COLS)
    w_branch, w_next = values(3, COLS), values(4, COLS)
    operator = normed_linear(Epilogue.NONE, False, True, "float16")
    out, y = np.zeros((1, COLS), np.float32), np.zeros((1, 32), np.float32)

    run(operator, branch, residual, w_branch, w_next, *tensors, out, y)

    total = residual + normed(branch) * w_branch
    exact = normed(total.astype(np.float32)) * w_next
    rounded = exact.astype(np.float32).astype(np.float16).astype(np.float64)
    close(y, rounded @ matrix.T)


def decode_attention(case: Case, cache_dtype: str, splits: int, **fields: Any) -> SplitAttention:
    return SplitAttention(
        rows=ONE,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        window=case.window,
        cache_rows=case.ring,
        cache_dtype=cache_dtype,
        splits=splits,
        query=NormedQuery(rotary_offset=3, rotary_total=24, eps=EPS, **fields),
    )


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("value_is_key", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_decode_attention_prepares_writes_and_attends(
    case: Case, dtype: str, value_is_key: bool, splits: int
) -> None:
    pairs = DIM // 8
    parts = HEADS + (1 if value_is_key else 2) * KV_HEADS
    qkv = values(1, 1, parts * DIM, deviation=2.0)
    q_norm, k_norm = values(2, DIM, deviation=0.5), values(3, DIM, deviation=0.5)
    angles = np.random.default_rng(4).uniform(-3, 3, (1, 24))
    rotary = np.full((12, 24, 2), 7.0, np.float32)
    rotary[:1] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    old_keys, old_values = (
        values(seed, case.before, KV_HEADS, DIM).astype(dtype) for seed in (5, 6)
    )
    key, value = fill(case, old_keys, dtype), fill(case, old_values, dtype)
    o_partial = np.zeros((splits, HEADS, DIM), dtype)
    split_lse = np.zeros((splits, HEADS, 2), np.float32)
    out = np.zeros((1, HEADS * DIM), dtype)

    operator = decode_attention(
        case,
        cache_dtype=dtype,
        pairs=pairs,
        splits=splits,
        owns_kv=True,
        value_is_key=value_is_key,
    )
    run(operator, qkv, q_norm, k_norm, case.positions, rotary, key, value, o_partial, split_lse)
    run(CombineSplits(HEADS, DIM, splits, dtype), o_partial, split_lse, out)

    heads = qkv.reshape(1, -1, DIM)
    turned = angles[:, 3 : 3 + pairs]
    q = rotate(normed(heads[:, :HEADS]) * q_norm, turned, pairs)
    raw_k = heads[:, HEADS : HEADS + KV_HEADS]
    raw_v = raw_k if value_is_key else heads[:, HEADS + KV_HEADS :]
    new_key = rotate(normed(raw_k) * k_norm, turned, pairs).astype(dtype)
    new_value = normed(raw_v).astype(dtype)
    keys, data = np.concatenate([old_keys, new_key]), np.concatenate([old_values, new_value])
    np.testing.assert_allclose(key, fill(case, keys, dtype), **ROUNDED[dtype])
    np.testing.assert_allclose(value, fill(case, data, dtype), **ROUNDED[dtype])
    expected = attend(q, keys.astype(np.float64), data.astype(np.float64), case)
    tolerance = ROUNDED["float32"] if dtype == "float32" else {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(out, expected.reshape(1, -1), **tolerance)


def test_a_shared_layer_only_reads_the_cache() -> None:
    case = STEPS[-1]
    qkv, q_norm = values(1, 1, HEADS * DIM), values(2, DIM, deviation=0.5)
    angles = np.random.default_rng(4).uniform(-3, 3, (1, 24))
    rotary = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    keys, data = (values(seed, case.before + 1, KV_HEADS, DIM) for seed in (5, 6))
    key, value = fill(case, keys, "float32"), fill(case, data, "float32")
    o_partial, split_lse = (
        np.zeros((2, HEADS, DIM), np.float32),
        np.zeros((2, HEADS, 2), np.float32),
    )
    out = np.zeros((1, HEADS * DIM), np.float32)

    operator = decode_attention(case, cache_dtype="float32", pairs=DIM // 2, splits=2)
    run(operator, qkv, q_norm, case.positions, rotary, key, value, o_partial, split_lse)
    run(CombineSplits(HEADS, DIM, 2, "float32"), o_partial, split_lse, out)

    q = rotate(normed(qkv.reshape(1, HEADS, DIM)) * q_norm, angles[:, 3 : 3 + DIM // 2], DIM // 2)
    expected = attend(q, keys.astype(np.float64), data.astype(np.float64), case)
    np.testing.assert_allclose(out, expected.reshape(1, -1), **ROUNDED["float32"])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("empty", [0, 2])
def test_merge_and_matmul_in_one(dtype: str, empty: int) -> None:
    heads, dim, splits = 3, 32, 4
    tensors, matrix = stored(4, "float16", (40,), cols=heads * dim)
    o_partial, split_lse = values(1, splits, heads, dim).astype(dtype), values(2, splits, heads, 2)
    split_lse[..., 0] *= 10
    split_lse[..., 1] = np.abs(split_lse[..., 1]) + 0.5
    o_partial[splits - empty :] = 0.0
    split_lse[splits - empty :] = (LOWEST, 0.0)
    y = np.zeros((1, 40), np.float32)

    operator = Linear(
        rows=ONE,
        layout=WeightLayout(4, "float16", GROUP, heads * dim, (40,)),
        in_dtype=dtype,
        prologue=Combine(heads=heads, head_dim=dim, splits=splits),
    )
    run(operator, o_partial, split_lse, *tensors, y)

    merged = combined_heads(o_partial, split_lse)
    expected = merged.reshape(1, -1) @ matrix.T
    if dtype == "float32":
        close(y, expected)
    else:  # a value on the edge between two float16 numbers may fall to either side
        np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())

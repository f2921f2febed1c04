"""Attention operators against NumPy in float64, over wrapped rings and over whole contexts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.split_attention import SplitAttention
from tests.numerics.definitions import F32_ABSOLUTE, F32_RELATIVE, ROUNDED, run, values

Float64Array = npt.NDArray[np.float64]

HEADS, KV_HEADS, DIM = 4, 2, 32
EPS = 1e-6
WINDOW, RING = 8, 16
CAPACITY = 64


@dataclass(frozen=True)
class Case:
    """A layer kind and a number of positions before the last chunk."""

    window: int | None
    before: int
    count: int

    @property
    def ring(self) -> int | None:
        return None if self.window is None else RING

    @property
    def rows(self) -> int:
        return CAPACITY if self.window is None else RING

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        return np.array([self.before, self.count, self.before + self.count, 0], np.int32)


# A ring of 16 rows and a window of 8 take chunks of up to 9 positions.
CHUNKS = [
    Case(window, before, count)
    for window in (None, WINDOW)
    for before, count in ((0, 1), (0, 9), (3, 7), (15, 2), (16, 1), (29, 9))
]
STEPS = [Case(window, before, 1) for window in (None, WINDOW) for before in (0, 5, 7, 8, 31, 50)]


def fill(case: Case, keys: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The cache after all positions: a ring keeps the last that fit; other rows hold a marker."""
    cache = np.full((case.rows, *keys.shape[1:]), 1e3, dtype)
    for position, row in enumerate(keys):
        cache[position % case.rows] = row
    return cache


def attend(q: Float64Array, keys: Float64Array, data: Float64Array, case: Case) -> Float64Array:
    """Softmax attention with scale 1 over explicit positions; query head h reads head h // 2."""
    out = np.zeros_like(q)
    for row in range(len(q)):
        last = case.before + case.count - len(q) + row
        first = 0 if case.window is None else max(0, last - case.window + 1)
        for head in range(HEADS):
            seen = keys[first : last + 1, head // (HEADS // KV_HEADS)]
            scores = seen @ q[row, head]
            weights = np.exp(scores - scores.max())
            source = data[first : last + 1, head // (HEADS // KV_HEADS)]
            out[row, head] = weights @ source / weights.sum()
    return out


def inputs(case: Case, dtype: str) -> tuple[npt.NDArray[Any], ...]:
    total = case.before + case.count
    q = values(1, case.count, HEADS, DIM, deviation=0.5)
    keys, data = (values(seed, total, KV_HEADS, DIM).astype(dtype) for seed in (2, 3))
    return q, keys, data


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("case", CHUNKS, ids=str)
def test_prefill_attention_sees_exactly_its_window(case: Case, dtype: str) -> None:
    q, keys, data = inputs(case, dtype)
    out = np.zeros((case.count, HEADS * DIM), dtype)

    operator = PrefillAttention(
        CHUNK, HEADS, KV_HEADS, DIM, case.window, dtype, case.ring, out_dtype=dtype
    )
    caches = fill(case, keys, dtype), fill(case, data, dtype)
    run(operator, q.reshape(case.count, -1), *caches, case.positions, out)

    expected = attend(q.astype(np.float64), keys.astype(np.float64), data.astype(np.float64), case)
    np.testing.assert_allclose(out, expected.reshape(out.shape), **ROUNDED[dtype])


@pytest.mark.parametrize("case", CHUNKS[::3], ids=str)
def test_a_rounded_query_is_that_of_float16(case: Case) -> None:
    q, keys, data = inputs(case, "float16")
    out = np.zeros((case.count, HEADS * DIM), np.float32)

    operator = PrefillAttention(
        CHUNK, HEADS, KV_HEADS, DIM, case.window, "float16", case.ring, rounds_to_halves=True
    )
    caches = fill(case, keys, "float16"), fill(case, data, "float16")
    run(operator, q.reshape(case.count, -1), *caches, case.positions, out)

    rounded, *kv = (part.astype(np.float16).astype(np.float64) for part in (q, keys, data))
    expected = attend(rounded, kv[0], kv[1], case).reshape(out.shape)
    np.testing.assert_allclose(out, expected, **ROUNDED["float32"])
    unrounded = attend(q.astype(np.float64), kv[0], kv[1], case).reshape(out.shape)
    assert case.count == 1 or np.abs(out - unrounded).max() > 10 * F32_ABSOLUTE


@pytest.mark.parametrize("splits", [1, 3, 8])
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_splits_of_a_decode_step_merge_to_the_whole(case: Case, splits: int) -> None:
    q, keys, data = inputs(case, "float32")
    o_partial = np.zeros((splits, HEADS, DIM), np.float32)
    split_lse = np.zeros((splits, HEADS, 2), np.float32)
    out = np.zeros((1, HEADS * DIM), np.float32)

    split = SplitAttention(
        ONE, HEADS, KV_HEADS, DIM, case.window, "float32", case.ring, splits=splits
    )
    caches = fill(case, keys, "float32"), fill(case, data, "float32")
    run(split, q.reshape(1, -1), *caches, case.positions, o_partial, split_lse)
    run(CombineSplits(HEADS, DIM, splits, "float32"), o_partial, split_lse, out)

    expected = attend(q.astype(np.float64), keys.astype(np.float64), data.astype(np.float64), case)
    np.testing.assert_allclose(out, expected.reshape(1, -1), **ROUNDED["float32"])


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    case = Case(None, 11, 1)
    q, keys, data = inputs(case, "float32")
    q *= 100.0
    out = np.zeros((1, HEADS * DIM), np.float32)

    operator = PrefillAttention(CHUNK, HEADS, KV_HEADS, DIM, None, "float32", None)
    caches = fill(case, keys, "float32"), fill(case, data, "float32")
    run(operator, q.reshape(1, -1), *caches, case.positions, out)

    expected = attend(q.astype(np.float64), keys.astype(np.float64), data.astype(np.float64), case)
    # A score of some 500 carries a rounding of 500 * 1e-6 into the exponential.
    np.testing.assert_allclose(out, expected.reshape(1, -1), rtol=2e-3, atol=2e-3)


# --- QkNormRopeCache ---


def rotate(x: Float64Array, angles: Float64Array, pairs: int) -> Float64Array:
    """Channel j pairs with j + DIM / 2; only the first `pairs` pairs turn."""
    out, half = x.copy(), DIM // 2
    cos, sin = np.cos(angles[:, None, :]), np.sin(angles[:, None, :])
    low, high = x[..., :pairs], x[..., half : half + pairs]
    out[..., :pairs] = low * cos - high * sin
    out[..., half : half + pairs] = high * cos + low * sin
    return out


def normed(x: npt.NDArray[np.float32]) -> Float64Array:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS)


@pytest.mark.parametrize("before", [0, 14])
@pytest.mark.parametrize("pairs", [DIM // 2, DIM // 8])
@pytest.mark.parametrize("value_is_key", [False, True])
def test_keys_are_rotated_and_values_only_normed(
    value_is_key: bool, pairs: int, before: int
) -> None:
    count, offset, total = 5, 3, 24
    case = Case(WINDOW, before, count)
    heads = [HEADS, KV_HEADS] + ([] if value_is_key else [KV_HEADS])
    qkv = values(1, count, sum(heads) * DIM, deviation=3.0)
    q_norm, k_norm = values(2, DIM), values(3, DIM)
    angles = np.random.default_rng(4).uniform(-3, 3, (count, total))
    # The table is as long as the longest chunk; rows behind this chunk's are stale.
    rotary = np.full((12, total, 2), 7.0, np.float32)
    rotary[:count] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    key, value = (np.full((RING, KV_HEADS, DIM), 1e3, np.float32) for _ in range(2))
    q = np.zeros((count, HEADS * DIM), np.float32)

    operator = QkNormRopeCache(
        rows=CHUNK,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        pairs=pairs,
        rotary_offset=offset,
        rotary_total=total,
        eps=EPS,
        owns_kv=True,
        value_is_key=value_is_key,
        cache_dtype="float32",
        cache_rows=RING,
    )
    run(operator, qkv, q_norm, k_norm, case.positions, rotary, key, value, q)

    parts = qkv.reshape(count, -1, DIM)
    turned = angles[:, offset : offset + pairs]
    expected_q = rotate(normed(parts[:, :HEADS]) * q_norm, turned, pairs)
    raw_k = parts[:, HEADS : HEADS + KV_HEADS]
    raw_v = raw_k if value_is_key else parts[:, HEADS + KV_HEADS :]
    np.testing.assert_allclose(q.reshape(expected_q.shape), expected_q, **ROUNDED["float32"])
    rows = [(before + step) % RING for step in range(count)]
    expected_k = rotate(normed(raw_k) * k_norm, turned, pairs)
    np.testing.assert_allclose(key[rows], expected_k, **ROUNDED["float32"])
    np.testing.assert_allclose(value[rows], normed(raw_v), **ROUNDED["float32"])
    untouched = [row for row in range(RING) if row not in rows]
    assert (key[untouched] == 1e3).all()
    assert (value[untouched] == 1e3).all()


def test_a_shared_layer_rotates_its_query_by_the_last_position() -> None:
    total, count = DIM // 2, 6
    qkv, q_norm = values(1, 1, HEADS * DIM), values(2, DIM)
    angles = np.random.default_rng(4).uniform(-3, 3, (count, total))
    rotary = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    q = np.zeros((1, HEADS * DIM), np.float32)

    operator = QkNormRopeCache(
        rows=ONE,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        pairs=total,
        rotary_offset=0,
        rotary_total=total,
        eps=EPS,
        owns_kv=False,
        value_is_key=False,
        cache_dtype="float32",
        cache_rows=RING,
    )
    run(operator, qkv, q_norm, Case(WINDOW, 9, count).positions, rotary, q)

    expected = rotate(normed(qkv.reshape(1, HEADS, DIM)) * q_norm, angles[-1:], total)
    np.testing.assert_allclose(
        q.reshape(expected.shape), expected, rtol=F32_RELATIVE, atol=F32_ABSOLUTE
    )

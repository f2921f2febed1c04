"""Attention over keys in parts: the definitions against NumPy, the kernels against them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma4_compile.operators.attention import OverCache, PrefillAttention
from gemma4_compile.operators.attention_splits import LOWEST, CombineSplits
from gemma4_compile.operators.heads import CachePart
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import CHUNK, ONE, Few, Rows
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets import target_spec
from gemma4_compile.types import Array
from tests.marks import shares, under_limits
from tests.numerics.attention.test_attention_kernels import decode
from tests.numerics.attention.test_few_row_attention import few
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import CAPACITY, KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

HEADS, KV_HEADS, DIM, SPLITS, MOST = 6, 2, 16, 3, 9
PREFILL = PrefillAttention(CHUNK, HEADS, KV_HEADS, DIM, None, "float32", None)
ROUNDING = 512 * 2.0**-24  # of sums of some hundred float32 terms of deviation 1, at most


def expected_attention(q: Array, key: Array, value: Array, first: int) -> Array:
    """Causal attention in float64 of rows at positions from `first` on."""
    result = np.empty((len(q), HEADS * DIM))
    for i, row in enumerate(q.reshape(len(q), HEADS, DIM).astype(float)):
        seen = first + i + 1
        keys, values = (x[:seen].repeat(HEADS // KV_HEADS, 1).astype(float) for x in (key, value))
        scores = np.einsum("hd,thd->ht", row, keys)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        result[i] = np.einsum("ht,thd->hd", weights, values).ravel()
    return result


def parts_of(x: Array, rows: int, count: int) -> list[Array]:
    """`count` tensors of so many rows; what is behind the last position is no number."""
    padded = np.full((rows * count, *x.shape[1:]), np.nan, x.dtype)
    padded[: len(x)] = x
    return [padded[i * rows : (i + 1) * rows].copy() for i in range(count)]


def attend(
    operator: OverCache, q: Array, key: Array, value: Array, first: int, rows: int, count: int
) -> Array:
    """Run an attention over `count` parts of so many positions, one after the other."""
    positions = np.array([first, len(q), first + len(q), 0], np.int32)
    results = [np.full_like(q, np.nan), np.full((len(q), HEADS, 2), np.nan, np.float32)]
    lead = tuple(map(int, operator.rows.lead(len(q))))
    if isinstance(operator, SplitAttention):
        shapes = (*lead, SPLITS, HEADS, DIM), (*lead, SPLITS, HEADS, 2)
        results = [np.full(shape, np.nan, np.float32) for shape in shapes]
    keys, values = parts_of(key, rows, count), parts_of(value, rows, count)
    for index in range(count):
        part = replace(operator, part=CachePart(index, count))
        run(part, q, keys[index], values[index], positions, *results)
    if not isinstance(operator, SplitAttention):
        return results[0]
    out = np.empty_like(q)
    run(CombineSplits(HEADS, DIM, SPLITS, "float32", operator.rows), *results, out)
    return out


InParts = OverCache | QkNormRopeCache
ROWS: dict[str, Rows] = {"chunk": CHUNK, "few": Few(MOST), "one": ONE}


@pytest.mark.parametrize("name", ROWS)
@settings(max_examples=10, deadline=None)
@given(
    first=st.integers(0, 70),
    count=st.integers(1, MOST),
    parts=st.sampled_from([2, 3, 5]),
    spare=st.integers(0, 9),
)
@example(first=40, count=5, parts=2, spare=35)  # the first row begins a part
@example(first=39, count=1, parts=2, spare=40)  # the last row ends one
@example(first=3, count=7, parts=5, spare=0)  # a call over all parts
@example(first=0, count=1, parts=3, spare=0)
def test_parts_one_after_the_other_are_the_attention(
    name: str, first: int, count: int, parts: int, spare: int
) -> None:
    count = 1 if name == "one" else count
    length = first + count
    rows = -(-(length + spare) // parts)
    rng = np.random.default_rng(first * 100 + rows)
    q = rng.normal(size=(count, HEADS * DIM)).astype(np.float32)
    key, value = (rng.normal(size=(length, KV_HEADS, DIM)).astype(np.float32) for _ in range(2))
    operator: OverCache = PREFILL
    if name != "chunk":
        operator = SplitAttention(
            ROWS[name], HEADS, KV_HEADS, DIM, None, "float32", None, splits=SPLITS, grain=4
        )
    found = attend(operator, q, key, value, first, rows, parts)
    expected = expected_attention(q, key, value, first)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


def test_a_split_without_keys_in_any_part_is_empty() -> None:
    operator = SplitAttention(
        ONE, HEADS, KV_HEADS, DIM, None, "float32", None, splits=4, grain=4, part=CachePart(0, 2)
    )
    rng = np.random.default_rng(3)
    q, key = rng.normal(size=(1, HEADS * DIM)), rng.normal(size=(8, KV_HEADS, DIM))
    q, key = q.astype(np.float32), key.astype(np.float32)
    positions = np.array([5, 1, 6, 0], np.int32)
    partial = np.full((4, HEADS, DIM), np.nan, np.float32)
    lse = np.full((4, HEADS, 2), np.nan, np.float32)
    run(operator, q, key, key, positions, partial, lse)
    before = partial.copy(), lse.copy()
    run(replace(operator, part=CachePart(1, 2)), q, key, key, positions, partial, lse)
    assert not partial[2:].any()
    assert (lse[2:] == np.array([LOWEST, 0], np.float32)).all()
    for found, old in zip((partial, lse), before, strict=True):  # the second part has no keys yet
        np.testing.assert_array_equal(found, old)


def cache_writer(part: CachePart, **fields: bool) -> QkNormRopeCache:
    names = {"owns_kv": True, "value_is_key": False, **fields}
    return QkNormRopeCache(
        CHUNK, 4, 2, 32, 8, 3, 24, 1e-6, **names, cache_dtype="float32", cache_rows=None, part=part
    )


@pytest.mark.parametrize("first", [0, 5, 8, 17])
def test_each_part_gets_its_own_rows(first: int) -> None:
    length, rows, count = 7, 8, 3
    rng = np.random.default_rng(first)
    whole = cache_writer(CachePart())
    qkv = rng.normal(size=(length, whole.columns.width)).astype(np.float32)
    norms = [rng.normal(size=32).astype(np.float32) for _ in range(2)]
    positions = np.array([first, length, first + length, 0], np.int32)
    rotary = rng.normal(size=(length, 24, 2)).astype(np.float32)
    old = rng.normal(size=(2, rows * count, 2, 32)).astype(np.float32)
    key, value, q = *old.copy(), np.empty((length, 4 * 32), np.float32)
    run(whole, qkv, *norms, positions, rotary, key, value, q)
    keys, values = (parts_of(x, rows, count) for x in old)
    found = np.empty_like(q)
    for index in range(count):
        operator = cache_writer(CachePart(index, count))
        given_norms, results = (norms, [found]) if operator.makes_q else (norms[1:], [])
        cache = keys[index], values[index]
        run(operator, qkv, *given_norms, positions, rotary, *cache, *results)
    np.testing.assert_array_equal(found, q)
    np.testing.assert_array_equal(np.concatenate(keys), key)
    np.testing.assert_array_equal(np.concatenate(values), value)


# --- Kernels ---

# Rows before the call, of a part with 1300: none of it yet, its first, its middle, its end among
# them, long behind.
PLACES = (-40, -4, 0, 700, CAPACITY - 3, CAPACITY + 900)


def divided(operator: InParts, index: int) -> InParts:
    return replace(operator, part=CachePart(index, 3))


KERNELS: dict[str, InParts] = {
    "decode": decode(4, 2, 64, None, 5, 8, value_is_key=True, cache_dtype="float32"),
    "E2B decode": decode(8, 1, 512, None, 16, 32),
    "shared decode": decode(3, 1, 264, None, 3, 8, owns_kv=False),
    "few rows": few(5, 1, 96, None, 4, 8, cache_dtype="float32"),
    "few rows of E2B": few(8, 1, 512, None, 16, 32),
    "last row": SplitAttention(ONE, 6, 2, 128, None, "float16", None, splits=7, grain=8),
    "padded chunk": PrefillAttention(CHUNK, 6, 2, 64, None, "float32", None, has_copies=True),
    "chunk": PrefillAttention(CHUNK, 8, 1, 512, None, "float16", None, "float16"),
    "chunk of 26 vectors": PrefillAttention(CHUNK, 7, 1, 104, None, "float32", None),
    "keys that are values": cache_writer(CachePart(), value_is_key=True, has_copies=True),
    "keys": cache_writer(CachePart()),
}


def cases_of(name: str) -> list[KernelCase]:
    """A kernel of a first and of a last part at every place that it can be called at."""
    cases = []
    for index in (0, 2):
        operator = divided(KERNELS[name], index)
        for number, place in enumerate(PLACES):
            if place >= 0 or index:  # before the first part is nothing
                rows = (5, 1, 9, 4, 7, 2)[number] if isinstance(operator.rows, Few) else 19
                case = make_case(operator, number, place, rows)
                last = len(case.args) - 1  # the sums, or values: where nothing is new, they stay
                stays = replace(case, changed=(last,), expected=(case.arrays[-1],))
                cases.append(case if case.changed else stays)
    return cases


def test_the_cases_have_all_of_a_part_and_none() -> None:
    cases = cases_of("shared decode")
    idle = [np.array_equal(case.arrays[-1], case.expected[-1]) for case in cases]
    assert 0 < sum(idle) < len(cases)
    assert {int(case.arrays[2][2]) - 1 for case in cases} > {CAPACITY - 3, CAPACITY * 2 - 4}


@pytest.mark.slow
@pytest.mark.dawn
@pytest.mark.parametrize(("share", "limits"), under_limits(shares(KERNELS, 3, left=2)))
def test_kernels_of_parts(
    share: list[tuple[int, str]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [case for _, name in share for case in cases_of(name)]
    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)

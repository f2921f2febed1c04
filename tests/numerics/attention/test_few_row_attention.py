"""Attention of one to nine rows: the definitions against a chunk's, the kernels against them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.examples import SUM_F32
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.attention.few_rows import few_row_shape
from gemma4_compile.types import Array
from tests.marks import slow_unless, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import SUBGROUP, VulkanDriver

MOST = 9
LENGTHS = [0, 1, 63, 1200]  # positions before the rows


def few(
    heads: int, kv_heads: int, dim: int, window: int | None, splits: int, grain: int, **fields: Any
) -> SplitAttention:
    ring = None if window is None else window + 33
    return SplitAttention(
        rows=Few(MOST),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        window=window,
        cache_rows=ring,
        splits=splits,
        grain=grain,
        **{"cache_dtype": "float16", **fields},
    )


def normed(attention: SplitAttention, pairs: int, offset: int = 0) -> SplitAttention:
    """The attention, which norms and rotates its queries itself."""
    return replace(attention, query=NormedQuery(pairs, offset, rotary_total=320, eps=1e-6))


SHAPES = {
    "E2B sliding": few(8, 1, 256, 512, 8, 64),
    "E2B full": few(8, 1, 512, None, 16, 32),
    "26B sliding": few(8, 4, 256, 1024, 4, 64, cache_dtype="float32"),
    "31B full": few(8, 1, 512, None, 3, 1),
    "groups of three": few(6, 2, 64, 40, 3, 16),
    "groups of five": few(5, 1, 96, None, 4, 8, cache_dtype="float32"),
    # Windows of fewer keys than there are rows: of some splits a row sees nothing.
    "small windows": few(4, 2, 16, 7, 4, 1),
    "padded keys": few(3, 1, 264, 70, 3, 8),
    "normed, full": normed(few(8, 1, 512, None, 16, 32), 64, 256),
    "normed, small windows": normed(few(4, 2, 16, 7, 4, 1), 8),
    "normed, groups of five": normed(few(5, 1, 96, None, 4, 8, cache_dtype="float32"), 40, 8),
    "normed, padded keys": normed(few(3, 1, 264, 70, 3, 8), 132),
    "normed, sliding": normed(few(8, 1, 256, 512, 8, 64), 128),
}
QUICK_SHAPES = ("small windows", "normed, padded keys")


def cases_of(name: str) -> list[KernelCase]:
    """Every length, each with another number of rows."""
    rows = {0: 3, 1: 9, 63: 1, 1200: 6} if len(name) % 2 else {0: 9, 1: 2, 63: 5, 1200: 8}
    return [make_case(SHAPES[name], n, n, rows[n]) for n in LENGTHS]


def combinations() -> list[CombineSplits]:
    shapes = [(8, 512, 128), (3, 256, 1), (2, 16, 7), (5, 20, 300)]
    return [
        CombineSplits(heads, dim, splits, dtype, Few(MOST))
        for (heads, dim, splits), dtype in zip(shapes, ["float16", "float32"] * 2, strict=True)
    ]


def prepared(operator: SplitAttention, case: KernelCase) -> Array:
    """Queries as the attention takes them, by the definition of a chunk's."""
    q, _, _, positions, *own = (array.copy() for array in case.arrays[:-2])
    if operator.normed is None:
        return q
    prepare = QkNormRopeCache(
        CHUNK, operator.heads, operator.kv_heads, operator.head_dim, operator.normed.pairs,
        operator.normed.rotary_offset, operator.normed.rotary_total, operator.normed.eps,
        owns_kv=False,
        value_is_key=False, cache_dtype="float32", cache_rows=operator.cache_rows,
    )  # fmt: skip
    q_norm, rotary = own
    result = np.zeros_like(q)
    run(prepare, q, q_norm, positions, rotary, result)
    return result


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("before", slow_unless(lambda before: before == 1, [0, 1, 1200]))
def test_splits_put_together_are_the_attention_of_a_chunk(name: str, before: int) -> None:
    operator = replace(SHAPES[name], cache_dtype="float32")
    case = make_case(operator, 1, before, 7)
    arrays = [array.copy() for array in case.arrays]
    run(operator, *arrays)
    (_, key, value, positions), (o_partial, split_lse) = arrays[:4], arrays[-2:]
    q = prepared(operator, case)
    heads, kv_heads, dim = operator.heads, operator.kv_heads, operator.head_dim
    chunk = PrefillAttention(
        CHUNK, heads, kv_heads, dim, operator.window, "float32", operator.cache_rows
    )
    found, expected = np.zeros_like(q), np.zeros_like(q)

    run(
        CombineSplits(heads, dim, operator.splits, "float32", Few(MOST)),
        o_partial,
        split_lse,
        found,
    )
    run(chunk, q, key, value, positions, expected)

    np.testing.assert_allclose(found, expected, rtol=0, atol=SUM_F32 * np.abs(expected).max())


def test_a_row_that_sees_nothing_of_a_split_says_so() -> None:
    case = make_case(SHAPES["small windows"], 0, 63, MOST)
    *_, o_partial, split_lse = case.expected
    nothing = split_lse[..., 1] == 0
    assert nothing.any()
    assert not nothing.all(axis=1).any()
    assert not o_partial[nothing].any()


@pytest.mark.dawn
@pytest.mark.parametrize(
    ("name", "limits"), under_limits(slow_unless(lambda name: name in QUICK_SHAPES, SHAPES))
)
def test_rows_at_every_length(
    name: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = cases_of(name)

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
def test_rows_put_together(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    cases = [make_case(one, seed, rows=1 + 3 * seed) for seed, one in enumerate(combinations())]
    spec = replace(target_spec("webgpu", "subgroups"), simd_width=SUBGROUP)

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_blocks_share_keys_among_rows() -> None:
    """The queries of a block are of several rows where a KV head has few query heads."""
    spec = target_spec("webgpu")
    of_31b = few(32, 16, 256, 1024, 8, 64)
    assert few_row_shape(of_31b, spec, spec.tuning.few_rows.queries).heads > 32 // 16


def test_blocks_of_many_rows_have_more_queries_on_cuda() -> None:
    spec = target_spec("cuda")
    tuning = spec.tuning.few_rows
    for name, usual, many in (("E2B sliding", 2, 4), ("E2B full", 4, 8)):
        operator = replace(SHAPES[name], splits={"E2B sliding": 9, "E2B full": 64}[name])
        assert few_row_shape(operator, spec, tuning.queries).heads == usual
        assert few_row_shape(operator, spec, tuning.many_queries, MOST).heads == many


@pytest.mark.dawn
@pytest.mark.parametrize(
    "name",
    slow_unless(
        lambda name: name == "normed, groups of five",
        ["E2B sliding", "normed, full", "normed, groups of five"],
    ),
)
def test_many_rows_may_have_another_kernel(
    name: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", "subgroups")
    sizes = replace(spec.tuning.few_rows, queries=2, many_queries=8, attention_blocks=1)
    spec = replace(spec, simd_width=SUBGROUP, tuning=replace(spec.tuning, few_rows=sizes))
    operator, few_rows = SHAPES[name], spec.tuning.few_rows
    assert few_row_shape(operator, spec, few_rows.queries).heads == 2
    assert few_row_shape(operator, spec, few_rows.many_queries, MOST).heads > 2
    cases = [make_case(operator, rows, 1200, rows) for rows in (1, 5, 6, 9)]

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)

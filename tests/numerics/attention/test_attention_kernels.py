"""Attention's WebGPU kernels at the edges of their shapes, against the definitions, on Dawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.rows import ONE, Chunk
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.attention.decode_shape import decode_shape
from tests.marks import shares, slow_unless, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

LENGTHS = [0, 1, 63, 64, 1200]  # positions before the new one


def check(cases: list[KernelCase], limits: str, driver: VulkanDriver, folder: Path) -> None:
    spec = target_spec("webgpu", limits)
    assert not (wrong := differences(cases, run_on_dawn(cases, spec, driver, folder))), "\n".join(
        wrong
    )


def decode(
    heads: int, kv_heads: int, dim: int, window: int | None, splits: int, grain: int, **fields: Any
) -> SplitAttention:
    ring = None if window is None else window + 33
    dtype = fields.pop("cache_dtype", "float16")
    sizes: dict[str, Any] = {
        "pairs": max(1, dim // 8),
        "rotary_offset": 3,
        "rotary_total": 3 + dim // 2,
    }
    query = NormedQuery(**{"eps": 1e-6, "owns_kv": True, **sizes, **fields})
    return SplitAttention(
        ONE, heads, kv_heads, dim, window, dtype, ring, splits=splits, grain=grain, query=query
    )


DECODE = {
    "E2B sliding": decode(8, 1, 256, 512, 8, 64),
    "E2B full": decode(8, 1, 512, None, 16, 32),
    "E2B full, shared": decode(8, 1, 512, None, 5, 32, owns_kv=False),
    "26B sliding": decode(8, 4, 256, 1024, 4, 64, cache_dtype="float32"),
    "12B full": decode(16, 1, 512, None, 3, 1, value_is_key=True),
    "groups of three": decode(6, 2, 64, 40, 3, 16),
    "groups of five": decode(5, 1, 96, None, 4, 8, cache_dtype="float32"),
    "tiny heads": decode(4, 2, 16, 7, 2, 1),
    "smallest heads": decode(4, 2, 8, 40, 3, 4),
    "three vectors a half": decode(3, 3, 24, 50, 3, 4),
}
QUICK_DECODE = ("26B sliding", "smallest heads")
# Keys whose vectors no number of lanes divides: (heads, KV heads, head_dim) and what else differs.
PADDED_DECODE = [
    decode(6, 2, 136, None, 7, 16),
    decode(7, 1, 88, 40, 3, 16, cache_dtype="float32"),
    decode(5, 1, 200, None, 4, 8, value_is_key=True),
    decode(3, 1, 264, 70, 3, 8, cache_dtype="float32"),
    decode(8, 2, 328, None, 5, 8),
    decode(4, 2, 504, None, 5, 8, owns_kv=False),
]
PADDED_LENGTHS = (333, 0, 64, 65, 1200, 1)


@pytest.mark.parametrize(
    ("name", "limits"), under_limits(slow_unless(lambda name: name in QUICK_DECODE, DECODE))
)
def test_one_position_at_every_length(
    name: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    check([make_case(DECODE[name], n, n) for n in LENGTHS], limits, lavapipe, tmp_path)


@pytest.mark.parametrize(
    ("share", "limits"),
    under_limits(shares(zip(PADDED_DECODE, PADDED_LENGTHS, strict=True), 3, left=2)),
)
def test_keys_that_no_lanes_divide(
    share: list[tuple[int, tuple[SplitAttention, int]]],
    limits: str,
    lavapipe: VulkanDriver,
    tmp_path: Path,
) -> None:
    spec = target_spec("webgpu", limits)
    assert all(decode_shape(operator, spec).padding for _, (operator, _) in share)
    cases = [make_case(operator, length, length) for _, (operator, length) in share]
    check(cases, limits, lavapipe, tmp_path)


@pytest.mark.parametrize(
    ("shapes", "limits"),
    under_limits(
        slow_unless(lambda shapes: len(shapes) == 1, [[(70, 168)], [(None, 128), (70, 128)]])
    ),
)
def test_one_position_with_its_query_ready(
    shapes: list[tuple[int | None, int]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = []
    for window, head_dim in shapes:
        ring = None if window is None else 100
        operator = SplitAttention(ONE, 6, 2, head_dim, window, "float16", ring, splits=7, grain=8)
        cases += [make_case(operator, n, n) for n in LENGTHS]
    check(cases, limits, lavapipe, tmp_path)


MERGED = [
    (CombineSplits(heads, dim, splits, dtype), dim)
    for heads, dim, splits in [(8, 512, 128), (3, 256, 1), (2, 16, 7), (5, 20, 300), (1, 96, 33)]
    for dtype in ("float16", "float32")
]


@pytest.mark.parametrize(("share", "limits"), under_limits(shares(MERGED, 3)))
def test_merging_any_number_of_splits(
    share: list[tuple[int, tuple[CombineSplits, int]]],
    limits: str,
    lavapipe: VulkanDriver,
    tmp_path: Path,
) -> None:
    cases = [make_case(operator, seed) for _, (operator, seed) in share]
    check(cases, limits, lavapipe, tmp_path)


CHUNK = {
    "E2B sliding": PrefillAttention(Chunk(), 8, 1, 256, 512, "float16", 1056, "float16"),
    "E2B full": PrefillAttention(Chunk(), 8, 1, 512, None, "float16", None, "float16"),
    "26B sliding": PrefillAttention(Chunk(), 8, 4, 256, 1024, "float32", 1056),
    "groups of three": PrefillAttention(Chunk(), 6, 2, 64, 9, "float16", 32, "float16"),
    "groups of five": PrefillAttention(Chunk(), 5, 1, 96, None, "float32", None),
    "tiny heads": PrefillAttention(Chunk(), 4, 2, 16, 7, "float16", 32),
    "heads of two vectors": PrefillAttention(Chunk(), 3, 3, 8, None, "float16", None),
    "heads of 26 vectors": PrefillAttention(Chunk(), 7, 1, 104, 40, "float32", 83),
    "heads of 126 vectors": PrefillAttention(Chunk(), 3, 1, 504, None, "float16", None, "float16"),
}
QUICK_CHUNK = ("26B sliding", "heads of 26 vectors")


@pytest.mark.parametrize(
    ("name", "limits"), under_limits(slow_unless(lambda name: name in QUICK_CHUNK, CHUNK))
)
def test_a_chunk_at_every_length(
    name: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(CHUNK[name], n, n) for n in (0, 45, 1200)]
    check(cases, limits, lavapipe, tmp_path)

"""Attention in simdgroup matrices: chunks and patches, at released widths and odd lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tvm

from gemma4_compile.operators.heads import CachePart
from gemma4_compile.operators.packed_texts import SpanAttention
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.attention import simdgroup_chunk, simdgroup_patches
from gemma4_compile.targets.kernels.attention.simdgroup_shape import (
    SimdgroupAttentionShape,
    chunk_division,
    head_division,
    pitch_of,
)
from gemma4_compile.targets.metal import LIMITS, TILES
from gemma4_compile.targets.spec import TargetSpec
from tests.marks import slow_unless
from tests.metal.emulated_kernels import check_both_orders, link_cases
from tests.metal.test_mistakes import BARRIER, other, without, wrong_cases
from tests.metal.test_simdgroups import SPEC
from tests.numerics.attention.test_picture_attention_kernels import CHUNKS as MODALITIES
from tests.numerics.attention.test_picture_attention_kernels import picture_case
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.numerics.tensor_cores import CHUNKS as ROUNDED
from tests.numerics.tensor_cores import PICTURES
from tests.numerics.vision.test_vision_kernels import F16, F32

CHUNKS = {name: replace(one, rounds_to_halves=False) for name, one in ROUNDED.items()}
QUICK = "groups of three"
ALIKE = (
    "31B sliding",
    "12B full",
    "window of less than a tile",
)  # others but for groups and windows
EMULATED = {
    **{name: one for name, one in CHUNKS.items() if name not in ALIKE},
    "short heads, float32": replace(CHUNKS["groups of three"], head_dim=16, cache_dtype=F32),
}
PATCHES = (
    PatchAttention(1, 64, 3, F16, F16),
    PatchAttention(2, 72, 3, F16, F32),
    PatchAttention(2, 24, 2, F32, F16),
)
SPANS = (
    SpanAttention(2, 1, 256, 512, F16, F16),
    SpanAttention(2, 1, 512, None, F32, F32),
    SpanAttention(6, 2, 64, 3, F16, F32),
)


def chunk_cases(name: str) -> list[KernelCase]:
    """A chunk of a short head at the beginning of a sequence and later, of a long one later."""
    operator = EMULATED[name]
    befores: tuple[int, ...] = (77,) if operator.window is None else (1200,)
    if operator.head_dim < 128:
        befores = (0, 45, *befores)
    rows = 19 if operator.head_dim < 256 else 3 if operator.window else 5
    return [make_case(operator, len(name), before, rows=rows) for before in befores]


def check(
    cases: list[KernelCase], device: tvm.runtime.Device, folder: Path, spec: TargetSpec = SPEC
) -> list[str]:
    """Hold results against the definitions, all of kernels with matrices; their texts."""
    sources = check_both_orders(cases, spec, device, folder)
    assert sources
    assert all("simdgroup_multiply_accumulate(" in source for source in sources)
    return sources


@pytest.mark.parametrize("name", slow_unless(QUICK.__eq__, EMULATED))
def test_a_chunk(name: str, metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    check(chunk_cases(name), metal_device, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [QUICK, "E2B full", "E2B sliding"])
def test_a_chunk_in_other_tiles(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    sizes = {(one.simdgroups.keys, one.simdgroups.direct_queries): one for one in TILES.values()}
    sizes.pop((SPEC.tuning.simdgroups.keys, False))
    assert len(sizes) == 2
    evenly = EMULATED[name].heads // EMULATED[name].kv_heads % 8 == 0
    for (keys, direct), tuning in sizes.items():
        (tmp_path / str(keys)).mkdir()
        spec = replace(SPEC, tuning=tuning)
        sources = check(chunk_cases(name), metal_device, tmp_path / str(keys), spec)
        loaded = ["(&(q_ptr[" in source for source in sources]
        assert all(loaded) if direct and evenly else not any(loaded)


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_chunk_with_pictures(name: str, metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    heads, kv_heads = (2, 1) if PICTURES[name].head_dim > 64 else (6, 2)
    operator = replace(PICTURES[name], heads=heads, kv_heads=kv_heads, rounds_to_halves=False)
    names = ("a picture within text", "many small ones")[: 1 if operator.head_dim > 64 else 2]
    cases = [picture_case(operator, MODALITIES[chunk], 45) for chunk in names]
    check(cases, metal_device, tmp_path)


@pytest.mark.slow
def test_patches(metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    cases = [make_case(operator, seed, rows=9) for seed, operator in enumerate(PATCHES)]
    check(cases, metal_device, tmp_path)


@pytest.mark.slow
def test_texts(metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    cases = [make_case(one, seed) for seed, one in enumerate(SPANS)]
    check([*cases, make_case(SPANS[0], 3, rows=1)], metal_device, tmp_path)


MISTAKES: dict[str, Callable[[str], str]] = {
    "no barrier before a step's keys are read": without(BARRIER, 0),
    "no barrier before a step's keys are overwritten": without(BARRIER, 1),
    "no barrier before scores are read": without(BARRIER, 2),
    # The next one is TVM's, which does not see that a thread reads and writes the same scores.
    "no barrier before values and weights are read": without(BARRIER, 4),
    "no barrier before values are overwritten": without(BARRIER, 5),
    "no barrier before results are read": without(BARRIER, 6),
    "no barrier before results are overwritten": without(BARRIER, 7),
    "keys as values lie": other(r", 40, 0, \(bool\)1\);", ", 40, 0, (bool)0);"),
    "scores at another pitch": other(r", 72, 0, \(bool\)0\);", ", 64, 0, (bool)0);"),
    "sums that keep their scale": other(r"(simd_min\(.*\));", r"\1 * 0.0f + 1.0f;"),
    "rescaled by another row's": other(r"\[16\](\)+, 8, 0,)", r"[0]\1"),
    "a maximum of half a row": other(r"simd_shuffle_xor\((.*), \(ushort\)4\)", r"\1"),
    "keys that a row does not see": other(r"(condval\w* =) -3.000000e\+38f", r"\1 300.0f"),
}


@pytest.fixture(scope="module")
def first() -> list[KernelCase]:
    """Two tiles of keys, in a window that some of the first ones are before."""
    chunk = replace(CHUNKS["groups of three"], heads=2, kv_heads=1, window=70, cache_rows=140)
    return [make_case(chunk, 1, 1200)]


@pytest.fixture(scope="module")
def library(first: list[KernelCase], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_cases(first, SPEC, tmp_path_factory.mktemp("simdgroup_attention"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_found(
    name: str, first: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    assert wrong_cases(first, library, metal_device, MISTAKES[name]) == {0}


METAL = [one for one in LIMITS.values() if one.simdgroup_matrices]


def test_divisions_fit() -> None:
    spec = target_spec("metal", "simdgroups")
    divisions: tuple[tuple[Callable[[int], SimdgroupAttentionShape], range], ...] = (
        *((partial(chunk_division, group=8, spec=one), range(16, 513, 16)) for one in METAL),
        (head_division, range(16, 129, 8)),
    )
    for division, dims in divisions:
        for dim in dims:
            shape = division(dim)
            if not shape.fits(spec):
                continue
            assert shape.shared_bytes <= 32 << 10
            assert shape.tall * shape.bands * 8 == shape.score_tall * shape.score_bands * 8
            assert shape.wide * shape.parts * 8 == dim
            assert shape.keys % shape.keys_at_once == 0
            assert pitch_of(dim) % 4 == 2, "neighbouring rows in other banks"
    assert all(
        chunk_division(dim, 8, one).fits(one) for dim in (16, 64, 128, 256, 512) for one in METAL
    )
    assert all(head_division(dim).fits(spec) for dim in (64, 72))
    assert not head_division(256).fits(spec), "more sums than registers"


def test_what_is_left_to_the_other_kernels() -> None:
    spec, chunk = target_spec("metal", "simdgroups"), CHUNKS["E2B full"]
    assert simdgroup_chunk.fits_simdgroups(chunk, spec)
    assert not simdgroup_chunk.fits_simdgroups(chunk, target_spec("metal"))
    assert not simdgroup_chunk.fits_simdgroups(replace(chunk, rounds_to_halves=True), spec)
    assert not simdgroup_chunk.fits_simdgroups(replace(chunk, part=CachePart(1, 2)), spec)
    assert not simdgroup_chunk.fits_simdgroups(replace(chunk, head_dim=264), spec)
    assert simdgroup_patches.fits_simdgroups(PATCHES[0], spec)
    assert not simdgroup_patches.fits_simdgroups(replace(PATCHES[0], head_dim=256), spec)

"""Simdgroup matrices: the emulator's rules, and matmuls of a chunk that use them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tvm

from gemma4_compile.operators.conformer import RelativeAttention
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear import bounded_gemm
from gemma4_compile.targets.kernels.linear.gemm import fits_simdgroups
from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import SimdgroupShape
from gemma4_compile.targets.metal import LIMITS, TILES
from gemma4_compile.targets.tuning import Tuning
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, check_both_orders, link_cases
from tests.metal.test_emulator import HEAD, compile_bodies, launch
from tests.metal.test_mistakes import BARRIER, other, without, wrong_cases
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.numerics.linear.test_bounded_kernels import OPERATORS as BOUNDED

# --- The emulator ---

MATRICES = "simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);\n"
LOAD = "simdgroup_load(a, x, 8, 0, false);\n"
BODIES = {
    "product": f"""
  {MATRICES}{LOAD}
  simdgroup_load(b, x, 8, ulong2(0, 0), true);
  simdgroup_multiply_accumulate(c, a, b, c);
  simdgroup_store(c, y, 8);
""",
    "halves": f"""
  threadgroup half left[64];
  threadgroup half right[64];
  simdgroup_half8x8 p, q;
  {MATRICES}
  for (int i = 0; i < 2; ++i) {{
    left[thread_.x * 2 + i] = (half)x[thread_.x * 2 + i];
    right[thread_.x * 2 + i] = (half)x[64 + thread_.x * 2 + i];
  }}
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_load(p, left);
  simdgroup_load(q, right);
  simdgroup_multiply_accumulate(c, p, q, c);
  simdgroup_store(c, y, 8, 0, true);
""",
    "origin": f"""
  {MATRICES}
  simdgroup_load(a, x, 16, ulong2(8, 0));
  simdgroup_store(a, y);
""",
    "unfilled": f"{MATRICES}simdgroup_store(b, y);",
    "some_lanes": f"{MATRICES}if (thread_.x % 2 == 0) {{ {LOAD} }}",
    "two_places": f"{MATRICES}simdgroup_load(a, x + thread_.x % 2, 8);",
    "two_pitches": f"{MATRICES}simdgroup_load(a, x, 8 + thread_.x % 2);",
    "narrow": f"{MATRICES}simdgroup_load(a, x, 4);",
    "own_memory": f"float mine[64]; {MATRICES}simdgroup_load(a, mine);",
    "array_end": f"""
  threadgroup float shared_[71];
  {MATRICES}simdgroup_store(c, shared_ + 8);
""",
}


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    return compile_bodies(BODIES)


X = np.random.default_rng(8).normal(0, 1, 128).astype(np.float32)


def run(kernels: ctypes.CDLL, name: str, threads: int = 32) -> npt.NDArray[np.float32]:
    """The first 64 values of a kernel's `y`, as a matrix; X is longer than its threads."""
    size = X.size // threads
    return launch(kernels, name, X, blocks=size)[:64].reshape(8, 8)


def test_a_product_adds_to_its_sums(kernels: ctypes.CDLL) -> None:
    a = X[:64].reshape(8, 8)
    expected = a.astype(np.float64) @ a.T.astype(np.float64) + 1
    np.testing.assert_allclose(run(kernels, "product"), expected, atol=1e-5)


def test_halves_have_sums_of_float(kernels: ctypes.CDLL) -> None:
    a, b = X.astype(np.float16).astype(np.float64).reshape(2, 8, 8)
    np.testing.assert_allclose(run(kernels, "halves"), (a @ b + 1).T, atol=1e-5)


def test_a_matrix_begins_at_an_origin(kernels: ctypes.CDLL) -> None:
    np.testing.assert_array_equal(run(kernels, "origin"), X.reshape(8, 16)[:, 8:])


def test_a_matrix_that_nobody_filled_is_nan(kernels: ctypes.CDLL) -> None:
    assert np.isnan(run(kernels, "unfilled")).all()


@pytest.mark.parametrize(
    ("name", "threads", "message"),
    [
        ("some_lanes", 32, "threads diverge"),
        ("two_places", 32, "different places of a matrix"),
        ("two_pitches", 32, "different places of a matrix"),
        ("product", 16, "a simdgroup of 16 threads has no matrices"),
        ("narrow", 32, "rows of a matrix that overlap: 4 elements a row"),
        ("own_memory", 32, "a matrix in a thread's own memory"),
        ("array_end", 32, "an index outside of its array"),
    ],
)
def test_what_metal_leaves_undefined_is_an_error(
    name: str, threads: int, message: str, kernels: ctypes.CDLL
) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(kernels, name, threads)


@pytest.mark.parametrize(
    "text",
    [
        "simdgroup_half8x8 h; simdgroup_load(h, x);",
        "simdgroup_float8x8 f; x[0] = f.own_[0];",
        "simdgroup_half8x8 h; simdgroup_float8x8 f; simdgroup_multiply_accumulate(f, h, f, f);",
        "simdgroup_matrix<float, 4, 4> f;",
    ],
)
def test_what_the_specification_does_not_have_is_refused(text: str) -> None:
    source = f"{HEAD}kernel void wrong(device float* x, uint b, uint t) {{ {text} }}"
    with pytest.raises(emulator.KernelError, match="error:"):
        emulator.check_kernels({"wrong": source})


# --- Matmuls ---

SPEC = replace(emulator.SPEC, simdgroup_matrices=True)
OPERATORS = (
    Linear(CHUNK, WeightLayout(4, "float16", 32, 96, (64,)), "float16"),
    # No multiples of a tile: rows of W in parts, channels that end within a step, pairs and caps.
    Linear(CHUNK, WeightLayout(8, "float16", 32, 160, (64, 40)), "float16", "gelu_pairs"),
    Linear(CHUNK, WeightLayout(8, "float32", 32, 96, (70,)), "float32", "softcap", cap=30.0),
    Linear(CHUNK, WeightLayout(6, "float16", 32, 96, (36,)), "float16"),
    Linear(CHUNK, MinimaLayout(4, "uint32", 32, 96, (40,)), "float16"),
    Linear(CHUNK, WeightLayout(0, "float16", 0, 70, (9,)), "float16"),
    ExpertLinear(WeightLayout(4, "float16", 32, 96, (40 * 6,)), 40, 6, 3, "float16", rows=CHUNK),
)

TOWERS = BOUNDED[:4]  # eight bits and dense, both types, with and without a gate


@pytest.fixture(scope="module")
def first() -> list[KernelCase]:
    return [make_case(OPERATORS[0], 0)]


@pytest.fixture(scope="module")
def library(first: list[KernelCase], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_cases(first, SPEC, tmp_path_factory.mktemp("simdgroups"))


@pytest.mark.parametrize("order", ORDERS)
def test_four_bits_are_multiplied_in_matrices(
    order: str, first: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    EmulatedCases.load(first, metal_device, library).check(order)


@pytest.mark.slow
def test_every_kernel_computes_its_definition(
    metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed) for seed, operator in enumerate((*OPERATORS, *TOWERS))]
    sources = check_both_orders(cases, SPEC, metal_device, tmp_path)
    assert len(sources) == len(cases)
    assert all("simdgroup_multiply_accumulate(" in source for source in sources)


def division(tuning: Tuning) -> SimdgroupShape:
    return SimdgroupShape.of(tuning.simdgroups)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, one in TILES.items() if division(one) != division(SPEC.tuning)]
)
def test_every_tile_computes_the_definition(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    """Also of more rows than one tile has."""
    spec = replace(SPEC, tuning=TILES[name])
    cases = [make_case(operator, seed) for seed, operator in enumerate((*OPERATORS, TOWERS[0]))]
    cases.append(make_case(OPERATORS[1], 9, rows=spec.tuning.simdgroups.rows + 5))
    sources = check_both_orders(cases, spec, metal_device, tmp_path)
    assert all("simdgroup_multiply_accumulate(" in source for source in sources)


SOUNDS = (
    RelativeAttention(8, 128, 12, 50.0, True),
    RelativeAttention(2, 24, 5, 2.0, False),
    RelativeAttention(1, 512, 13, 50.0, False),
)


@pytest.mark.slow
def test_attention_of_sounds_has_no_barriers(
    metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    """A simdgroup has a row of a head; a longer head keeps several."""
    cases = [make_case(operator, seed, rows=17) for seed, operator in enumerate(SOUNDS)]
    sources = check_both_orders(cases, SPEC, metal_device, tmp_path)
    assert all("simd_sum(" in one and "barrier(" not in one for one in sources)
    (tmp_path / "long").mkdir()
    long = [make_case(RelativeAttention(1, 600, 40, 50.0, True), 3, rows=43)]
    (source,) = check_both_orders(long, SPEC, metal_device, tmp_path / "long")
    assert "barrier(" in source


MISTAKES: dict[str, Callable[[str], str]] = {
    "no barrier before a tile is written": without(BARRIER, 0),
    "no barrier before a tile is read": without(BARRIER, 1),
    "no barrier before sums take the tiles' memory": without(BARRIER, 2),
    "no barrier before sums are read": without(BARRIER, 3),
    "rows of x as channels": other(r"\(bool\)1\);", "(bool)0);"),
    "another pitch": other(r", 68, 0,", ", 64, 0,"),
    "an operand of another row": other(
        r"accumulate\((\w+)\[0\], (\w+)\[0\]", r"accumulate(\1[0], \2[1]"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_found(
    name: str, first: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    assert wrong_cases(first, library, metal_device, MISTAKES[name]) == {0}


def test_integers_are_left_to_the_other_kernels() -> None:
    spec = target_spec("metal", "simdgroups")
    assert all(fits_simdgroups(one, spec) for one in OPERATORS if isinstance(one, Linear))
    assert all(bounded_gemm.fits_simdgroups(one, spec) for one in TOWERS)
    others = {f"simdgroups-{name}" for name in TILES}
    assert others | {"default", "simdgroups", "tensors"} == set(LIMITS)
    for name in TILES:
        tiled = target_spec("metal", f"simdgroups-{name}")
        assert fits_simdgroups(OPERATORS[0], tiled)
        assert bounded_gemm.fits_simdgroups(TOWERS[0], tiled)
    assert not bounded_gemm.fits_simdgroups(TOWERS[0], target_spec("metal"))
    assert not fits_simdgroups(OPERATORS[0], target_spec("metal"))
    assert not fits_simdgroups(OPERATORS[0], replace(spec, max_shared_memory_bytes=16 << 10))

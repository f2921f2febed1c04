"""Metal 4's tensor operations: the emulator's rules, and matmuls of a chunk that use them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tvm

from gemma4_compile.operators.activations import HALVED
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.select import select
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, check_both_orders, link_cases
from tests.metal.test_emulator import compile_bodies, launch
from tests.metal.test_mistakes import BARRIER, other, without, wrong_cases
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.numerics.linear.test_bounded_kernels import OPERATORS as BOUNDED

# --- The emulator ---

HALF_TENSOR = "tensor<threadgroup half, dextents<int32_t, 2>, tensor_inline>"
FLOAT_TENSOR = "tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline>"
DESCRIPTOR = "mpp::tensor_ops::matmul2d_descriptor"


def product(*, groups: int = 2, right_transposed: str = "true", then: str = "") -> str:
    """A body: x's first values as 16 rows of 16 channels, times the rows of the others."""
    return f"""
  threadgroup half left_[256];
  threadgroup half right_[256];
  threadgroup float sums_[256];
  for (int i = 0; i < 4; ++i) {{
    left_[thread_.x * 4 + i] = (half)x[thread_.x * 4 + i];
    right_[thread_.x * 4 + i] = (half)x[256 + thread_.x * 4 + i];
  }}
  threadgroup_barrier(mem_flags::mem_threadgroup);
  auto left = {HALF_TENSOR}(left_, dextents<int32_t, 2>(16, 16));
  auto right = {HALF_TENSOR}(right_, dextents<int32_t, 2>(16, 16));
  constexpr auto form = {DESCRIPTOR}(16, 16, 16, false, {right_transposed}, false,
      {DESCRIPTOR}::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<form, execution_simdgroups<{groups}>> op;
  auto sums = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  auto to = {FLOAT_TENSOR}(sums_, dextents<int32_t, 2>(16, 16));
  {then}
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < 4; ++i) y[thread_.x * 4 + i] = sums_[thread_.x * 4 + i];
"""


ZERO = "for (ushort i = 0; i < sums.get_capacity(); ++i) sums[i] = 0.0f;\n"
ONCE = f"{ZERO}op.run(left, right, sums);\n"
BODIES = {
    "product": product(then=f"{ONCE}sums.store(to);"),
    "twice": product(then=f"{ONCE}op.run(left, right, sums);\nsums.store(to);"),
    "as_it_lies": product(then=f"{ONCE}sums.store(to);", right_transposed="false"),
    "unset": product(then="op.run(left, right, sums);\nsums.store(to);"),
    "some_threads": product(then=f"if (thread_.x < 32) {{ {ONCE} }}\nsums.store(to);"),
    "left_out": product(then=f"{ONCE}if (thread_.x < 32) sums.store(to);"),
    "too_many_simdgroups": product(groups=4, then=ONCE),
    "array_end": product(
        then=f"auto long_ = {HALF_TENSOR}(left_ + 16, dextents<int32_t, 2>(16, 16));"
    ),
    "no_element": product(then="sums[sums.get_capacity()] = 0.0f;"),
    "own_memory": f"half own[256]; auto left = {HALF_TENSOR}(own, dextents<int32_t, 2>(16, 16));",
}


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    return compile_bodies(BODIES)


X = np.random.default_rng(8).normal(0, 1, 512).astype(np.float32)
LEFT, RIGHT = X.astype(np.float16).astype(np.float64).reshape(2, 16, 16)


def run(kernels: ctypes.CDLL, name: str, *, reverse: bool = False) -> npt.NDArray[np.float32]:
    """The first 256 values of a kernel's `y`, of the first of 8 threadgroups of 64 threads."""
    return launch(kernels, name, X, blocks=8, reverse=reverse)[:256].reshape(16, 16)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("product", LEFT @ RIGHT.T),
        ("twice", 2 * LEFT @ RIGHT.T),
        ("as_it_lies", LEFT @ RIGHT),
    ],
)
def test_halves_have_sums_of_float(
    name: str, expected: npt.NDArray[np.float64], kernels: ctypes.CDLL
) -> None:
    found = [run(kernels, name, reverse=reverse) for reverse in (False, True)]
    for one in found:
        np.testing.assert_allclose(one, expected, atol=1e-5)
    assert (found[0] != found[1]).any(), "two orders of sums"


def test_sums_that_nobody_set_are_nan(kernels: ctypes.CDLL) -> None:
    assert np.isnan(run(kernels, "unset")).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some_threads", "threads of a threadgroup call different operations"),
        ("left_out", "thread 32 leaves out an operation of its threadgroup"),
        ("too_many_simdgroups", "an operation of 128 threads in a threadgroup of 64"),
        ("array_end", "an index outside of its array"),
        ("no_element", "a cooperative tensor has no element"),
        ("own_memory", "a tensor in a thread's own memory"),
    ],
)
def test_what_metal_leaves_undefined_is_an_error(
    name: str, message: str, kernels: ctypes.CDLL
) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(kernels, name)


# --- Matmuls ---

SPEC = replace(emulator.SPEC, simdgroup_matrices=True, tensor_operations=True)
OPERATORS: tuple[Operator, ...] = (
    Linear(CHUNK, WeightLayout(4, "float16", 32, 96, (64,)), "float16", activations=HALVED),
    # No multiples of a tile: rows of W in parts, channels that end within a step, pairs and caps.
    *(
        Linear(CHUNK, layout, dtype, epilogue, activations=HALVED)
        for layout, dtype, epilogue in (
            (WeightLayout(8, "float16", 32, 160, (64, 40)), "float16", "gelu_pairs"),
            (WeightLayout(6, "float16", 32, 96, (36,)), "float32", "none"),
            (MinimaLayout(4, "uint32", 32, 96, (40,)), "float16", "none"),
            (WeightLayout(0, "float16", 0, 70, (9,)), "float16", "none"),
        )
    ),
    *(
        ExpertLinear(layout, 40, 6, 3, dtype, rows=CHUNK, epilogue=epilogue, activations=HALVED)
        for layout, dtype, epilogue in (
            (WeightLayout(4, "float16", 32, 96, (40 * 6,)), "float16", "gelu_pairs"),
            (MinimaLayout(4, "uint32", 32, 96, (40 * 6,)), "float32", "none"),
        )
    ),
)
TOWERS = tuple(one for one in BOUNDED if one.layout.dtype == "float16")
CALL = "gemma4_product.run("


@pytest.fixture(scope="module")
def first() -> list[KernelCase]:
    return [make_case(OPERATORS[0], 0)]


@pytest.fixture(scope="module")
def library(first: list[KernelCase], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_cases(first, SPEC, tmp_path_factory.mktemp("tensors"))


@pytest.mark.parametrize("order", ORDERS)
def test_four_bits_are_multiplied_as_halves(
    order: str, first: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    EmulatedCases.load(first, metal_device, library).check(order)


@pytest.mark.slow
def test_every_kernel_computes_its_definition(
    metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed) for seed, operator in enumerate((*OPERATORS, *TOWERS))]
    cases.append(make_case(OPERATORS[1], 9, rows=SPEC.tuning.simdgroups.rows + 5))
    sources = check_both_orders(cases, SPEC, metal_device, tmp_path)
    assert all(CALL in source for source in sources)


# Channels of E2B, 26B-A4B with its experts and 31B; rows of W are few, for time's sake.
WIDTHS = {"float16": (1536, 2816, 5376), "float32": (2112, 12_288, 21_504)}


@pytest.mark.slow
def test_released_widths(metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    operators = [
        Linear(CHUNK, layout(cols, (40,)), dtype, activations=HALVED)
        for dtype, widths in WIDTHS.items()
        for cols, layout in zip(widths, (groups, minima, groups), strict=True)
    ]
    experts = [
        ExpertLinear(layout(cols, (48 * 4,)), 48, 4, 2, dtype, rows=CHUNK, activations=HALVED)
        for cols, dtype, layout in ((2816, "float16", groups), (704, "float32", minima))
    ]
    cases = [make_case(one, seed) for seed, one in enumerate((*operators, *experts))]
    check_both_orders(cases, SPEC, metal_device, tmp_path)


def groups(cols: int, rows: tuple[int, ...]) -> WeightLayout:
    return WeightLayout(4, "float16", 32, cols, rows)


def minima(cols: int, rows: tuple[int, ...]) -> WeightLayout:
    return MinimaLayout(4, "uint32", 32, cols, rows)


MISTAKES: dict[str, Callable[[str], str]] = {
    "no barrier before a tile is written": without(BARRIER, 0),
    "no barrier before a tile is read": without(BARRIER, 1),
    "no barrier before sums take the tiles' memory": without(BARRIER, 2),
    "no barrier before sums are read": without(BARRIER, 3),
    "W as it lies": other(r"false, true, false,", "false, false, false,"),
    "x and W by turns": other(r"run\(gemma4_left, gemma4_right", "run(gemma4_right, gemma4_left"),
    "sums that nobody set": other(r"gemma4_sums\[gemma4_i\] = 0.0f;", ";"),
    "sums that are not added to": other(r"multiply_accumulate", "multiply"),
    "W where x is": other(r"\(threadgroup half\*\)(\w+) \+ 2048", r"(threadgroup half*)\1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_found(
    name: str, first: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    assert wrong_cases(first, library, metal_device, MISTAKES[name]) == {0}


@pytest.mark.slow
def test_a_simdgroup_that_takes_no_part_is_found(
    first: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    less = other(r"execution_simdgroups<4>", "execution_simdgroups<3>")
    with pytest.raises(RuntimeError, match="an operation of 96 threads in a threadgroup of 128"):
        wrong_cases(first, library, metal_device, less)


def test_every_width_of_a_recipe_with_float16_is_taken() -> None:
    spec = target_spec("metal", "tensors")
    made = {one: select(one, spec).__name__ for one in (*OPERATORS, *TOWERS)}
    assert set(made.values()) == {
        "make_tensor_gemm",
        "make_tensor_experts",
        "make_tensor_bounded_gemm",
    }
    wide = replace(TOWERS[0], layout=replace(TOWERS[0].layout, dtype="float32"))
    assert select(wide, spec).__name__ == "make_simdgroup_bounded_gemm"

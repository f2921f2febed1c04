"""Mistakes in Metal kernels that the comparison with definitions must find."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import tvm

from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import CHUNK, ONE
from tests.marks import slow_unless
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, link_cases
from tests.numerics.kernel_cases import Array, KernelCase, differences, make_case

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
GEMM, GEMV, NORM, MERGE = range(4)
OPERATORS = (
    Linear(CHUNK, WeightLayout(4, "float16", 32, 96, (64,)), "float16"),
    Linear(ONE, WeightLayout(4, "float16", 32, 96, (64,)), "float16"),
    ResidualNorm(CHUNK, 96, 1e-6, True, "float16"),
    CombineSplits(2, 32, 5, "float16"),
)


def without(text: str, number: int) -> Callable[[str], str]:
    """A change that leaves out one occurrence of `text`, if there are as many."""

    def change(source: str) -> str:
        places = [found.start() for found in re.finditer(re.escape(text), source)]
        if len(places) <= number:
            return source
        return source[: places[number]] + source[places[number] + len(text) :]

    return change


def other(pattern: str, replacement: str, kernels_without: str = "\0") -> Callable[[str], str]:
    """A change of every occurrence, in kernels that do not have the given words."""
    return lambda source: (
        source if kernels_without in source else re.sub(pattern, replacement, source)
    )


# Each with the kernel that must become wrong.
MISTAKES: dict[str, tuple[int, Callable[[str], str]]] = {
    "no barrier before a tile is written": (GEMM, without(BARRIER, 0)),
    "no barrier before a tile is read": (GEMM, without(BARRIER, 1)),
    "no barrier before a reduction is read": (NORM, without(BARRIER, 1)),
    "no barrier before its memory is used again": (NORM, without(BARRIER, 3)),
    "half as an integer": (GEMV, other(r"device half\* x_ptr", "device ushort* x_ptr")),
    "sums in half": (
        GEMV,
        other(r"thread float (v\w*)\[1\]", r"thread half \1[1]", kernels_without="exp("),
    ),
    "scales of another group": (GEMM, other(r"q_scale0_ptr\[(.*)\];", r"q_scale0_ptr[\1 ^ 1];")),
    "a lane too far": (GEMV, other(r"(simd_shuffle_down\(.*), 2\)", r"\1, 3)")),
    "the largest in a sum's place": (NORM, other(r"simd_sum\(", "simd_max(")),
    "weights without the largest maximum": (MERGE, other(r"= \((v\w*) - v\w*\);", r"= \1;")),
    "nibbles in another order": (GEMV, other(r">> \(uint\)4\)", ">> (uint)8)")),
    "15 as the code below it": (
        GEMV,
        other(r"\((\(v\w+ >> \(uint\)\d+\) & \(uint\)15)\)", r"min(\1, (uint)14)"),
    ),
    "scales without their signs": (
        GEMV,
        other(r"\(\(float\)(q_scale0_ptr\[.*\])\);", r"max((float)\1, -(float)\1);"),
    ),
}

# One of each kernel, and each kind of mistake: synchronisation, arithmetic, a neighbour's value.
QUICK = (
    "no barrier before a tile is read",
    "a lane too far",
    "the largest in a sum's place",
    "half as an integer",
    "weights without the largest maximum",
)


@pytest.fixture(scope="module")
def cases() -> list[KernelCase]:
    return [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]


@pytest.fixture(scope="module")
def library(cases: list[KernelCase], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_cases(cases, emulator.SPEC, tmp_path_factory.mktemp("mistakes"))


COPIES = count()


def wrong_cases(
    cases: list[KernelCase],
    library: Path,
    device: tvm.runtime.Device,
    change: Callable[[str], str],
) -> set[int]:
    """Cases that differ from their definitions, in ascending or descending order of threads."""
    copy = library.with_name(f"copy{next(COPIES)}.so")  # a path is loaded once
    copy.write_bytes(library.read_bytes())
    with emulator.mistake(change):
        emulated = EmulatedCases.load(cases, device, copy)
    return set().union(*(wrong(cases, emulated.run(order)) for order in ORDERS))


def wrong(cases: list[KernelCase], results: list[tuple[Array, ...]]) -> set[int]:
    pairs = enumerate(zip(cases, results, strict=True))
    return {index for index, (case, result) in pairs if differences([case], [result])}


def test_without_a_mistake_nothing_differs(
    cases: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    assert wrong_cases(cases, library, metal_device, str) == set()


@pytest.mark.parametrize("name", slow_unless(lambda name: name in QUICK, MISTAKES))
def test_mistake_is_found(
    name: str, cases: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    kernel, change = MISTAKES[name]
    assert kernel in wrong_cases(cases, library, metal_device, change)


def test_a_read_after_a_buffer_is_named(
    cases: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    change = other(r"x_ptr\[", "x_ptr[1024 + ")
    with pytest.raises(RuntimeError, match=r"kernel `gem.*`: an access outside of a buffer"):
        wrong_cases(cases, library, metal_device, change)


def test_a_kernel_that_is_no_cpp_is_reported_at_its_launch(
    cases: list[KernelCase], library: Path, metal_device: tvm.runtime.Device
) -> None:
    with pytest.raises(RuntimeError, match=r"no kernel `gem.*undeclared identifier 'nothing'"):
        wrong_cases(cases, library, metal_device, other(r"x_ptr\[", "nothing["))

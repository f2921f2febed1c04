"""Attention whose warps go over keys of their own against its definition, on an emulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from gemma4_compile.operators.rows import ONE, Joint
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets.kernels.attention.warp_shape import warp_shape
from gemma4_compile.targets.spec import TargetSpec
from tests.marks import slow_unless
from tests.metal import emulator
from tests.metal.emulated_kernels import check_cuda_cases, is_found, link_cases
from tests.metal.test_mistakes import BARRIER, other, without
from tests.numerics.attention.test_attention_kernels import decode
from tests.numerics.kernel_cases import KernelCase, make_case


def spec_of(blocks: int) -> TargetSpec:
    """CUDA's kernels with warps of their own where there are so many blocks, or more."""
    tuning = emulator.TENSOR_CORES.tuning
    warps = replace(tuning.decode_attention, warp_keys=4, warp_threads=64)
    rows = replace(tuning.few_rows, attention_blocks=blocks)
    tuning = replace(tuning, decode_attention=warps, few_rows=rows)
    return replace(emulator.TENSOR_CORES, tuning=tuning)


SPEC = spec_of(4)
SHAPES = {
    "two heads": decode(4, 2, 256, 40, 3, 16),
    "four heads": decode(4, 1, 256, None, 3, 8, value_is_key=True),
    "wide heads": decode(4, 1, 512, None, 2, 8),
    "groups of three": decode(3, 1, 256, 70, 2, 8, owns_kv=False),
    "eight heads": decode(8, 1, 256, 33, 3, 1),
    "queries that are ready": SplitAttention(ONE, 6, 2, 256, 70, "float16", 100, splits=3, grain=8),
}
QUICK = "two heads"


ROWS = ((0, 2), (39, 3), (200, 2))
"""Positions before the first row's, and rows."""


def cases_of(name: str, spec: TargetSpec = SPEC) -> list[KernelCase]:
    """Rows of several sequences."""
    operator = replace(SHAPES[name], rows=Joint(9))
    assert warp_shape(operator, spec) is not None
    return [make_case(operator, before, before, rows) for before, rows in ROWS]


def check(cases: list[KernelCase], spec: TargetSpec, device: tvm.runtime.Device, at: Path) -> None:
    library = link_cases(cases, spec, at)
    check_cuda_cases(cases, library, device)


@pytest.mark.parametrize("name", slow_unless(lambda name: name == QUICK, SHAPES))
def test_each_warp_with_keys_of_its_own(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    check(cases_of(name), SPEC, metal_device, tmp_path)


@pytest.mark.slow
def test_fewer_rows_have_the_other_kernel(metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    spec = spec_of(32)
    cases = cases_of(QUICK, spec)
    shape = warp_shape(replace(SHAPES[QUICK], rows=Joint(9)), spec)
    assert shape is not None
    assert shape.rows == 3
    check(cases, spec, metal_device, tmp_path)


MISTAKES = {
    "no barrier before the warps' maxima": without(BARRIER, 2),
    "no barrier before the warps' sums": without(BARRIER, 3),
    "a score of every other lane": other(r"simd_shuffle_xor\(\w+\[0\], \(ushort\)1\)", "0.0f"),
    "a new key that is not put in": other(r" == v\[0\]\)", " == -1)"),
    "a weight of another lane": other(r"simd_shuffle\((\w+\[0\]), 4\)", r"\1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    cases = cases_of(QUICK)  # the first ones see few keys but their own
    library = link_cases(cases, SPEC, tmp_path)
    assert is_found(MISTAKES[name], cases, library, metal_device)

"""Attention of one position on tensor cores against its definition, on an emulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from gemma4_compile.operators.rows import ONE, Joint
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets.kernels.attention.tensor_core_decode_shape import (
    tensor_core_decode_shape,
)
from gemma4_compile.targets.spec import TargetSpec
from tests.marks import slow_unless
from tests.metal import emulator
from tests.metal.emulated_kernels import check_cuda_cases, is_found, link_cases
from tests.metal.test_mistakes import BARRIER, other, without
from tests.numerics.attention.test_attention_kernels import decode
from tests.numerics.kernel_cases import KernelCase, make_case


def make_spec() -> TargetSpec:
    """CUDA's kernels with tensor cores for heads of any size that they take."""
    tuning = emulator.TENSOR_CORES.tuning
    matrices = replace(tuning.decode_attention, matrix_head_dim=256, early_keys=True)
    return replace(emulator.TENSOR_CORES, tuning=replace(tuning, decode_attention=matrices))


SPEC = make_spec()
SHAPES = {
    "two heads": decode(4, 2, 256, 40, 3, 16),
    "one position": decode(8, 1, 512, None, 3, 16),
    "eight heads": decode(8, 1, 512, None, 2, 8, value_is_key=True),
    "sixteen heads": decode(16, 1, 256, 33, 2, 1),
    "groups of three": decode(3, 1, 256, 70, 2, 8, owns_kv=False),
    "queries that are ready": SplitAttention(ONE, 6, 2, 256, 70, "float16", 100, splits=3, grain=8),
}
QUICK = "two heads"
ROWS = ((0, 2), (39, 3), (200, 2))
"""Positions before the first row's, and rows."""


def cases_of(name: str) -> list[KernelCase]:
    """Rows of several sequences, or one."""
    operator = SHAPES[name] if name == "one position" else replace(SHAPES[name], rows=Joint(9))
    assert tensor_core_decode_shape(operator, SPEC) is not None
    if operator.is_one:
        return [make_case(operator, before, before) for before, _ in ROWS]
    return [make_case(operator, before, before, rows) for before, rows in ROWS]


@pytest.mark.parametrize("name", slow_unless(lambda name: name == QUICK, SHAPES))
def test_warps_with_channels_of_their_own(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = cases_of(name)
    library = link_cases(cases, SPEC, tmp_path)
    check_cuda_cases(cases, library, metal_device)


MISTAKES = {
    "no barrier after the squares": without(BARRIER, 0),
    "no barrier after the queries": without(BARRIER, 1),
    "no barrier after the scores' parts": without(BARRIER, 2),
    "a new key that is not put in": other(r" == v\[0\]\)", " == -1)"),
    "a top of one lane": other(r"simd_shuffle_xor\(\w+\[0\], \(ushort\)2\)", "0.0f"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    cases = cases_of(QUICK)
    library = link_cases(cases, SPEC, tmp_path)
    assert is_found(MISTAKES[name], cases, library, metal_device)

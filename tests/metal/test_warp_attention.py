"""Attention whose warps go over keys of their own against its definition, on an emulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from gemma4_compile.operators.rows import ONE, Joint
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets.kernels.attention.warp_shape import warp_shape
from tests.marks import slow_unless
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, link_cases
from tests.metal.test_mistakes import BARRIER, other, without
from tests.numerics.attention.test_attention_kernels import decode
from tests.numerics.kernel_cases import KernelCase, differences, make_case

TUNING = replace(
    emulator.TENSOR_CORES.tuning,
    decode_attention=replace(
        emulator.TENSOR_CORES.tuning.decode_attention, warp_keys=4, warp_threads=64, min_blocks=1
    ),
)
SPEC = replace(emulator.TENSOR_CORES, tuning=TUNING)
SHAPES = {
    "two heads": decode(4, 2, 256, 40, 3, 16),
    "four heads": decode(4, 1, 256, None, 3, 8, value_is_key=True),
    "wide heads": decode(4, 1, 512, None, 2, 8),
    "groups of three": decode(3, 1, 256, 70, 2, 8, owns_kv=False),
    "eight heads": decode(8, 1, 256, 33, 3, 1),
    "queries that are ready": SplitAttention(ONE, 6, 2, 256, 70, "float16", 100, splits=3, grain=8),
}
QUICK = "two heads"
LENGTHS = (0, 1, 39, 200)


def cases_of(name: str) -> list[KernelCase]:
    """One position at several lengths, and rows of several sequences."""
    operator = SHAPES[name]
    assert warp_shape(operator, SPEC) is not None
    cases = [make_case(operator, n, n) for n in LENGTHS]
    return [*cases, make_case(replace(operator, rows=Joint(9)), 7, 90, 3)]


@pytest.mark.parametrize("name", slow_unless(lambda name: name == QUICK, SHAPES))
def test_each_warp_with_keys_of_its_own(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = cases_of(name)
    library = link_cases(cases, SPEC, tmp_path)
    with emulator.memory_of_cuda():
        emulated = EmulatedCases.load(cases, metal_device, library)
        for order in ORDERS:
            emulated.check(order)


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
    cases = cases_of(QUICK)[::3]  # one alone sees its own key
    library = link_cases(cases, SPEC, tmp_path)
    with emulator.mistake(MISTAKES[name]), emulator.memory_of_cuda():
        emulated = EmulatedCases.load(cases, metal_device, library)
        assert any(differences(cases, emulated.run(order)) for order in ORDERS)

"""Kernels for Hopper's warpgroups against the definitions, executed on an emulated device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm

from gemma4_compile.operators.activations import HALVED_INT8, PACKED
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import TargetSpec
from tests.marks import slow_unless
from tests.metal import emulator
from tests.metal.emulated_kernels import check_cuda_cases, is_found, link_cases
from tests.metal.test_mistakes import BARRIER, other, without
from tests.numerics.kernel_cases import KernelCase, make_case

F16, GROUP = "float16", 32


def chunk(bits: int, cols: int, rows: tuple[int, ...], **fields: Any) -> Linear:
    layout = WeightLayout(bits, F16, GROUP, cols, rows)
    return replace(Linear(CHUNK, layout, PACKED, activations=HALVED_INT8), **fields)


def with_minima(cols: int, rows: tuple[int, ...], **fields: Any) -> Linear:
    layout = MinimaLayout(4, "uint32", GROUP, cols, rows)
    return replace(Linear(CHUNK, layout, PACKED, activations=HALVED_INT8), **fields)


def spec_of(tile: int) -> TargetSpec:
    spec = emulator.WARPGROUPS
    size = replace(spec.tuning.warpgroups, tiles=((tile, 1),), min_rows=20, few_rows=20)
    return replace(spec, tuning=replace(spec.tuning, warpgroups=size))


CASES: dict[str, tuple[int, int, Linear]] = {
    # Rows of x that end within the second tile, and of W within the second tile and split.
    "4 bits": (96, 101, chunk(4, 384, (64, 72))),
    "8 bits": (96, 33, chunk(8, 256, (140,), suppressed=(3, 139))),
    "one step, pairs": (128, 130, chunk(4, 128, (72,), epilogue=Epilogue.GELU_PAIRS.value)),
    "per-layer inputs": (
        192,
        200,
        chunk(8, 384, (256,), epilogue=Epilogue.GELU_GATE.value, ple_width=5 * 256),
    ),
    # Three steps: the second block of a row is the shorter one.
    "minima": (96, 101, with_minima(384, (64, 72))),
    "minima, pairs": (192, 200, with_minima(512, (136,), epilogue=Epilogue.GELU_PAIRS.value)),
    "minima, the widest tile": (256, 300, with_minima(2560, (130,))),
    "6 bits": (128, 130, chunk(6, 384, (64, 72))),
    "the widest tile": (256, 300, chunk(4, 1536, (130,))),
    "a few rows, which have the other kernel": (96, 19, chunk(4, 384, (64, 72))),
}
"""A block's rows of x, rows of x, and the matmul."""
QUICK = ("4 bits", "minima")


def case_of(name: str) -> tuple[KernelCase, TargetSpec]:
    tile, rows, operator = CASES[name]
    return make_case(operator, len(name), rows=rows), spec_of(tile)


@pytest.mark.parametrize("name", slow_unless(lambda name: name in QUICK, list(CASES)))
def test_every_kernel_computes_its_definition(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    case, spec = case_of(name)
    library = link_cases([case], spec, tmp_path)
    check_cuda_cases([case], library, metal_device, spec)


def test_fewer_rows_have_the_smaller_tile(metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    """On either side of what a block of it takes: the host chooses among three kernels."""
    spec = spec_of(192)
    size = replace(spec.tuning.warpgroups, tiles=((192, 200), (128, 155)), multiprocessors=2)
    assert (size.tile(2), size.small_tile(2)) == (192, (128, 128))
    spec = replace(spec, tuning=replace(spec.tuning, warpgroups=size))
    cases = [make_case(with_minima(128, (140,)), rows, rows=rows) for rows in (19, 128, 129)]
    library = link_cases(cases, spec, tmp_path)
    check_cuda_cases(cases, library, metal_device, spec)


MISTAKES: dict[str, tuple[str, Callable[[str], str]]] = {
    "no barrier before the first step": ("4 bits", without(BARRIER, 0)),
    "no barrier before the next step": ("4 bits", without(BARRIER, 1)),
    "no wait for what a stage's products read": (
        "4 bits",
        other(r"gemma4_warpgroup_wait\(\);", ""),
    ),
    "operands overwritten before they are read": (
        "4 bits",
        other(r"gemma4_warpgroup_wait_but_one\(\);", ""),
    ),
    "pieces in the order of their channels": (
        "4 bits",
        other(r"\((cse_v\w+) \^ cse_v\w+\)", r"\1"),
    ),
    "offsets of the other row": (
        "minima",
        other(r"(decode_offset_nibbles\(.*)\[1\]\);", r"\1[0]);"),
    ),
    "sizes of a step before": ("minima", other(r"(\w+ \* 4\) \+ cse_v\w+\)) & 7\)", r"\1 & 3)")),
    "upper bits of the other eight channels": (
        "6 bits",
        other(r"(decode_sixes\(.*), 1, ", r"\1, 0, "),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    case_name, change = MISTAKES[name]
    case, spec = case_of(case_name)
    library = link_cases([case], spec, tmp_path)
    assert is_found(change, [case], library, metal_device, spec)

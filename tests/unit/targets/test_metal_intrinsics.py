"""Metal's functions for the values of a whole simdgroup, where kernels exchange them."""

from __future__ import annotations

import re

import pytest
from tvm import tirx

from gemma4_compile.operators.tir import function, store
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    launch,
    sum_over_lanes,
    sum_over_subgroup,
)
from gemma4_compile.targets.kernels.common.builtins import from_neighbour, nearest

SPEC = target_spec("metal")


def metal_source(threads: int, lanes: int = 32) -> str:
    """The text of a kernel with sums over some lanes."""
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (256,), "float32") for name in "xy")
        with launch(threads, 1) as (_, _, thread):
            store(y, sum_over_subgroup(x[thread], lanes).value, thread)
    return kernel_source(build.result, "sums", SPEC)


def reduced(threads: int, name: str) -> str:
    """The text of a kernel that reduces over a block."""
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (256,), "float32") for name in "xy")
        with launch(threads, 1) as (_, _, thread):
            block = Block(thread, threads, SPEC.simd_width)
            match name:
                case "sum":
                    value = BlockReduction(block)(x[thread])
                case "largest":
                    value = BlockReduction(block)(x[thread], tirx.max)
                case "sums":
                    first, second = sum_over_lanes(block, [x[thread], x[thread + 1]], threads)
                    value = first * second
            store(y, value, thread)
    return kernel_source(build.result, "reduced", SPEC)


def test_five_exchanges_are_one_sum() -> None:
    source = metal_source(64)
    assert len(re.findall(r"(\w+\[0\]) = simd_sum\(\1\);", source)) == 1
    assert "simd_shuffle" not in source


@pytest.mark.parametrize("lanes", [16, 8, 2])
def test_a_part_of_a_simdgroup_exchanges(lanes: int) -> None:
    source = metal_source(64, lanes=lanes)
    assert source.count("simd_shuffle_down(") == lanes.bit_length() - 1
    assert "simd_sum" not in source


@pytest.mark.parametrize(
    ("name", "calls"),
    [("sum", ["simd_sum"]), ("largest", ["simd_max"]), ("sums", ["simd_sum"] * 2)],
)
@pytest.mark.parametrize("threads", [32, 64])
def test_all_threads_have_the_result_of_a_simdgroup(
    name: str, calls: list[str], threads: int
) -> None:
    source = reduced(threads, name)
    assert re.findall(r"simd_\w+", source) == calls
    assert ("threadgroup_barrier" in source) == (threads > 32)


def test_neighbours_exchange() -> None:
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (64,), "float32") for name in "xy")
        with launch(64, 1) as (_, _, thread):
            store(y, from_neighbour(x[thread], 4), thread)
    source = kernel_source(build.result, "exchange", SPEC)
    assert re.search(r"= simd_shuffle_xor\(x_ptr\[.*\], \(ushort\)4\);", source)
    assert "subgroup" not in source


def test_of_two_equally_near_numbers_the_even_one() -> None:
    """Metal's `round` takes the one farther from 0, where WGSL's takes the even one."""
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (64,), "float32") for name in "xy")
        with launch(64, 1) as (_, _, thread):
            store(y, nearest(x[thread]), thread)
    source = kernel_source(build.result, "nearest", SPEC)
    assert re.findall(r"\b(round|rint)\(", source) == ["rint"]

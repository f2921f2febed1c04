"""Four sums over a subgroup become one loop, where nothing needs one of them before the last."""

from __future__ import annotations

import re

import pytest
from tvm import tirx

from gemma4_compile.operators.tir import function, store
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import Block, BlockSums, launch
from gemma4_compile.targets.wgsl_sums import DISTANCES, join_sums

SUBGROUPS, H200 = target_spec("webgpu", "subgroups"), target_spec("webgpu", "h200")


def sums_kernel(count: int) -> tirx.PrimFunc:
    """Sums of so many numbers of each of 64 threads."""
    with function(scheduled=True) as build:
        x, y = build.arg("x", (64, count), "float32"), build.arg("y", (count,), "float32")
        with launch(64, 1) as (_, _, thread):
            block = Block(thread, 64, 32)
            for i, total in enumerate(BlockSums(block)([x[thread, i] for i in range(count)])):
                store(y, total, i)
    return build.result


@pytest.mark.parametrize(("count", "shuffles"), [(3, 15), (4, 4), (5, 9), (8, 8)])
def test_sums_of_a_block_are_joined_in_fours(count: int, shuffles: int) -> None:
    kernel = sums_kernel(count)
    assert kernel_source(kernel, "sums", SUBGROUPS).count("subgroupShuffleDown(") == 5 * count
    text = kernel_source(kernel, "sums", H200)
    assert text.count("subgroupShuffleDown(") == shuffles
    assert join_sums(text) == text


def test_each_sum_stays_its_own() -> None:
    """All four have their first values before the loop, which adds each to itself alone."""
    text = kernel_source(sums_kernel(4), "sums", H200)
    before, _, after = text.partition("for (var down : u32 = 16u; ")
    steps = re.findall(r"(\w+)\[0i\] = \((.*)\);", after.split("}")[0])
    assert [value for _, value in steps] == [
        f"{name}[0i] + subgroupShuffleDown({name}[0i], down)" for name, _ in steps
    ]
    assert len({name for name, _ in steps}) == 4
    for name, _ in steps:
        assert len(re.findall(rf"{name}\[0i\] = ", before)) == 1, "its first value"
    assert after.startswith("down >= min(gridDim.y, 1u); down >>= 1u) {")
    assert "@builtin(num_workgroups) gridDim" in before


def chain(name: str, distances: tuple[str, ...] = DISTANCES) -> list[str]:
    shuffled = "  {0}[0i] = ({0}[0i] + subgroupShuffleDown({0}[0i], u32({1}i)));"
    return [shuffled.format(name, distance) for distance in distances]


def kernel_of(*between: str, names: str = "abcd") -> str:
    """Chains, with a line in front of each but the first one."""
    lines = chain(names[0])
    for line, name in zip(between, names[1:], strict=True):
        lines += [line, *chain(name)]
    return "\n".join(lines)


PLAIN = ("  b[0i] = 1.0f;", "  let v : f32 = x[0i];", "  d[0i] = v;")


def test_statements_between_sums_come_first() -> None:
    before, _, loop = join_sums(kernel_of(*PLAIN)).partition("  for (")
    assert before == "".join(f"{line}\n" for line in PLAIN)
    assert loop.count("subgroupShuffleDown") == 4


@pytest.mark.parametrize(
    "line",
    [
        "  let v : f32 = a[0i];",  # a sum is needed
        "  a[0i] = 2.0f;",  # or begins anew
        "  workgroupBarrier();",
        "  if (v > 0.0f) {",
        "  }",
    ],
)
def test_sums_that_something_stands_between_stay(line: str) -> None:
    for place in range(3):
        text = kernel_of(*PLAIN[:place], line, *PLAIN[place + 1 :])
        assert join_sums(text) == text


def test_the_same_number_twice_and_other_lanes_stay() -> None:
    twice = kernel_of(*PLAIN, names="abca")
    assert join_sums(twice) == twice
    short = "\n".join(line for name in "abcd" for line in chain(name, DISTANCES[1:]))
    assert join_sums(short) == short

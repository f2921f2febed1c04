"""The comparison of libraries' kernels that a rebuilding is held against: what it sees and not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm import tirx

from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.rows import ONE
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from tools.kernel_texts import (
    QUICK,
    LibraryCase,
    Texts,
    all_cases,
    differences,
    without_counts,
    without_names,
)

SPEC = target_spec("metal")
RECORD = {"E2B": {"kernels": {"gemm": "a", "norm": "b"}, "functions": {"decode": "c"}}}


def script(second: str, kernel: str, *, swapped: bool = False) -> str:
    """A function as TVM prints it: a kernel on its second argument and the sum of both."""
    shape = 'R.Tensor((4,), dtype="float32")'
    args = f"{kernel}, {second}" if swapped else f"{second}, {kernel}"
    return f"""@R.function
def main(x: {shape}, {second}: {shape}) -> {shape}:
    with R.dataflow():
        {kernel}: {shape} = R.add(x, {second})
        lv = R.call_tir({kernel}, ({args}), out_ty={shape})
        R.output(lv)
    return lv
"""


def test_names_of_variables_and_kernels_are_no_difference() -> None:
    first = without_names(script("y", "gemv"), {"gemv": "0a1b"})
    assert first == without_names(script("z", "matmul"), {"matmul": "0a1b"})
    assert "0a1b" in first


def test_another_kernel_or_another_argument_is_one() -> None:
    first = without_names(script("y", "gemv"), {"gemv": "0a1b"})
    assert first != without_names(script("y", "gemv"), {"gemv": "2c3d"})
    assert first != without_names(script("y", "gemv", swapped=True), {"gemv": "0a1b"})


def test_texts_are_known_by_what_they_are_made_of(tmp_path: Path) -> None:
    def kernel(width: int, name: str) -> tirx.PrimFunc:
        operator = RmsNorm(ONE, width, 1e-6, "float32")
        return make_kernel(operator, SPEC).with_attr("global_symbol", name)

    texts = Texts(tmp_path / "texts.json")
    hashes = [texts.hash_of(kernel(width, name), SPEC) for width, name in ((64, "a"), (64, "b"))]
    assert hashes[0] == hashes[1] != texts.hash_of(kernel(128, "a"), SPEC)
    texts.keep()
    assert Texts(tmp_path / "texts.json").hash_of(kernel(64, "c"), SPEC) == hashes[0]


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (RECORD, []),
        (
            {"E2B": {"kernels": {"gemv": "a", "rms": "b"}, "functions": {"decode": "c"}}},
            [],
        ),
        (
            {"E2B": {"kernels": {"gemm": "a", "norm": "z"}, "functions": {"decode": "c"}}},
            ["E2B: gone texts: norm", "E2B: new texts: norm"],
        ),
        (
            {"E2B": {"kernels": {"gemm": "a", "norm": "b"}, "functions": {"decode": "d"}}},
            ["E2B: other launches in decode"],
        ),
        (
            {"E4B": {"kernels": {}, "functions": {}}},
            ["E4B: not in the record that it is compared with"],
        ),
    ],
)
def test_differences(now: dict[str, dict[str, dict[str, str]]], found: list[str]) -> None:
    assert list(differences(RECORD, now)) == found


def test_the_quick_cases_are_of_all() -> None:
    assert {LibraryCase(*case) for case in QUICK} <= set(all_cases())


def test_towers_are_recorded_where_they_are_asked_for() -> None:
    case = LibraryCase("gemma-4-E2B-it", "q4f16", "f16")
    towers = LibraryCase("gemma-4-E2B-it", "q4f16", "f16", towers=True)
    assert (case.name, towers.name) == ("gemma-4-E2B-it/q4f16/f16", f"{case.name}/towers")
    assert case.config.drafter is not None
    assert (case.config.vision, case.config.audio) == (None, None)
    assert towers.config.vision is not None
    assert towers.config.audio is not None


def test_arguments_are_counted_in_their_kernel() -> None:
    one, other = "f(lv7, lv12) = lv12 + lv7 + solve", "f(lv9, lv10) = lv10 + lv9 + solve"
    assert (
        without_counts(one)
        == without_counts(other)
        == "f(value0, value1) = value1 + value0 + solve"
    )
    assert without_counts("f(lv7, lv12) = lv7 + lv7") != without_counts("f(lv7, lv12) = lv7 + lv12")

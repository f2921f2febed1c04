"""Rows: their number, how they travel, and that nothing asks for one position by a number."""

from __future__ import annotations

import re

import pytest
from tvm import tirx

from gemma4_compile.operators.base import description_of, operator_from, operator_of
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.rows import CHUNK, ONE, Few, Rows
from tools.imports import SOURCES

LAYOUT = WeightLayout(4, "float16", 32, 64, (32,))
OTHERS = "gemma4_compile.checkpoint."  # has rows of tensors
QUESTION = re.compile(r"\brows [!=]= 1\b")


@pytest.mark.parametrize(("rows", "count"), [(ONE, 1), (Few(9), 9), (CHUNK, 19)])
def test_a_number_of_a_call_is_within_the_rows(rows: Rows, count: int) -> None:
    assert rows.count(19) == count
    assert rows.count(1) == 1


def test_one_is_a_number_and_the_others_are_symbols() -> None:
    assert ONE.extent() == 1
    for rows in (Few(9), CHUNK):
        extent = rows.extent()
        assert isinstance(extent, tirx.Var)
        assert extent.name == "n"


@pytest.mark.parametrize("rows", [ONE, Few(9), CHUNK])
def test_rows_travel_with_their_operator(rows: Rows) -> None:
    operator = Linear(rows, LAYOUT, "float16")
    assert operator_of(operator.prim_func()) == operator


def test_examples_of_a_few_rows_have_no_more() -> None:
    few = Linear(Few(2), LAYOUT, "float16")
    assert few.name.startswith("few_row_gemm")
    assert Linear(ONE, LAYOUT, "float16").name.startswith("gemv")


def test_a_number_of_an_earlier_version_is_not_taken_for_rows() -> None:
    text = description_of(RmsNorm(ONE, 64, 1e-6, "float16").prim_func())
    assert text is not None
    with pytest.raises(KeyError, match="rows"):
        operator_from(text.replace('{"form": "one"}', "1"))


def test_nobody_asks_for_one_row_by_its_number() -> None:
    asked = [
        f"{module}:{number}"
        for module, path in SOURCES.items()
        if not module.startswith(OTHERS)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if QUESTION.search(line)
    ]
    assert asked == []

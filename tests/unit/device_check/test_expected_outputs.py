"""Answers for a device's self-test; runtime/test_kernel_check.py holds kernels to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.device_check.expected_outputs import answers
from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.base import description_of, operator_from
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.rows import CHUNK
from tests.matmuls import int8_linear

NORM = RmsNorm(rows=CHUNK, width=96, eps=1e-6, out_dtype="float16")


def ask(operator: Any, folder: Path, **fields: Any) -> dict[str, Any]:
    description = description_of(operator.prim_func())
    request = {"operator": description, "seed": 1, "chunk": 12, **fields}
    (line,) = answers([json.dumps(request)], folder)
    answer: dict[str, Any] = json.loads(line)
    return answer


def test_a_description_gives_its_operator_back() -> None:
    description = description_of(NORM.prim_func())
    assert description is not None
    assert operator_from(description) == NORM
    with pytest.raises(KeyError):
        operator_from('{"kind": "of tomorrow"}')


def test_the_answer_is_what_the_operator_means(tmp_path: Path) -> None:
    answer = ask(NORM, tmp_path)
    before = [np.load(tmp_path / name) for name in answer["args"]]
    (index,) = answer["changed"]
    x, weight = (array.astype(np.float64) for array in before[:2])
    assert x.shape == (12, 96)  # no more rows than the package's chunk holds
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight
    found = np.load(tmp_path / answer["changed"][index]["expected"])
    allowed = np.load(tmp_path / answer["changed"][index]["allowed"])
    assert found.dtype == np.float16
    assert (np.abs(found - expected) <= allowed).all()
    assert (allowed < 0.01).all()


def test_more_rows_of_a_matmul_repeat_those_that_there_are(tmp_path: Path) -> None:
    """The definition takes its time for each row; kernels are chosen by their number."""
    matmul = int8_linear(CHUNK, WeightLayout(4, "float32", 32, 64, (8,)), PACKED)

    def arrays(rows: int) -> tuple[list[Any], Any]:
        answer = ask(matmul, tmp_path, rows=rows)
        before = [np.load(tmp_path / name) for name in answer["args"]]
        (change,) = answer["changed"].values()
        return before, np.load(tmp_path / change["expected"])

    (words, scales, *weights, _), expected = arrays(12)
    for rows in (5, 30):
        (own_words, own_scales, *own_weights, _), found = arrays(rows)
        for one, other in zip(weights, own_weights, strict=True):
            np.testing.assert_array_equal(one, other)
        assert [len(one) for one in (own_words, own_scales, found)] == [rows] * 3
        for row in range(rows):
            np.testing.assert_array_equal(own_words[row], words[row % 12])
            np.testing.assert_array_equal(own_scales[row], scales[row % 12])
            np.testing.assert_array_equal(found[row], expected[row % 12])


def test_the_same_seed_gives_the_same_arguments(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    arrays = []
    for folder, seed in zip(folders, (1, 1, 2), strict=True):
        folder.mkdir()
        answer = ask(NORM, folder, seed=seed)
        arrays.append(np.load(folder / answer["args"][0]))
    assert np.array_equal(arrays[0], arrays[1])
    assert not np.array_equal(arrays[0], arrays[2])

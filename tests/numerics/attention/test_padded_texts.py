"""The stock client's padded texts: definitions against NumPy, WebGPU kernels against those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.padded_texts import FirstRows, PackedTexts
from gemma4_compile.targets import target_spec
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

BOS, EOS, PAD = 2, 1, 0
OPERATORS = (PackedTexts(BOS, EOS), FirstRows(128), FirstRows(70))


def test_texts_are_packed_between_the_tokenizers_first_and_last_token() -> None:
    ids = np.array([[7, 8, 9], [BOS, 5, 0], [0, 0, 0], [6, 0, 0]], np.int32)
    mask = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]], np.int32)
    rows = np.array([[BOS, 7, 8, 9, EOS], [BOS, 5, PAD, PAD, PAD], [BOS, EOS, PAD, PAD, PAD],
                     [BOS, 6, EOS, PAD, PAD]])  # fmt: skip
    for begin, count in ((0, 4), (0, 2), (1, 2), (3, 1)):
        shapes = ((5 * count,), (5 * count, 2), (count, 2))
        packed, spans, ranges = (np.full(shape, -1, np.int32) for shape in shapes)
        run(PackedTexts(BOS, EOS), ids, mask, begin, packed, spans, ranges)
        np.testing.assert_array_equal(packed.reshape(-1, 5), rows[begin : begin + count])
        first = 5 * np.arange(count)
        lengths = np.array([5, 2, 2, 3])[begin : begin + count]
        np.testing.assert_array_equal(ranges, np.stack([first, first + lengths], axis=1))
        np.testing.assert_array_equal(spans, np.repeat(ranges, 5, axis=0))


def test_the_first_row_of_each_text_is_its_own_and_the_rest_is_zero() -> None:
    x = np.random.default_rng(0).normal(size=(2, 70)).astype(np.float32)
    out = np.full((2, 3, 70), np.nan, np.float32)
    run(FirstRows(70), x, out)
    np.testing.assert_array_equal(out[:, 0], x)
    assert not out[:, 1:].any()


@pytest.mark.dawn
def test_every_kernel_computes_its_definition(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    spec = target_spec("webgpu", "default")
    cases = [
        make_case(operator, seed, rows=rows)
        for rows in (9, 75)
        for seed, operator in enumerate(OPERATORS)
    ]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)

"""How far two right kernels may differ, and the arguments that they are compared on."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.device_check.comparison import (
    allowed_error,
    error_bounds,
    example_arguments,
    is_packed,
)
from gemma4_compile.operators.activation_quantization import QuantizeRows
from gemma4_compile.operators.activations import PackedOutput
from gemma4_compile.operators.examples import SUM_F32, Sizes
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.padded_rows import KeptRows
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.sampling import SampleTopP

NORM = RmsNorm(rows=CHUNK, width=96, eps=1e-6, out_dtype="float16")
SIZES = Sizes(rows=5, before=3, capacity=16, chunk=8)


def test_what_is_exact_and_what_may_differ() -> None:
    ids = np.array([1, 2], np.int32)
    assert (allowed_error(NORM, ids, "y") == 0).all()
    values = np.array([1.0, -2.0, -1e30], np.float32)  # the last is a suppressed token
    bound = allowed_error(NORM, values, "y")
    assert bound[0] == bound[2] == pytest.approx(2 * 3 * 128 * 2.0**-24)


def test_float16_may_differ_in_its_last_bit_as_well() -> None:
    values = np.array([4.0, -1.0, 0.0], np.float16)
    absolute, share = error_bounds(NORM, values, "y")
    assert absolute == pytest.approx(4 * SUM_F32)
    assert share == 2.0**-10
    np.testing.assert_allclose(
        allowed_error(NORM, values, "y"), absolute + share * np.array([4.0, 1.0, 0.0])
    )


@pytest.mark.parametrize("values", [np.zeros(0, np.float32), np.full(2, -1e30, np.float32)])
def test_nothing_and_suppressed_tokens_alone_must_be_equal(values: np.ndarray) -> None:
    assert (allowed_error(NORM, values, "y") == 0).all()


def test_a_large_value_is_no_excuse_for_what_the_operator_does_not_allow() -> None:
    class Strict(RmsNorm):
        def tolerance(self, result: str) -> float:
            return 0.5 if result == "y" else 0.0

    strict = Strict(ONE, 96, 1e-6, "float32")
    values = np.array([2.0], np.float32)
    assert error_bounds(strict, values, "y") == (1.0, 0.0)
    assert error_bounds(strict, values, "x") == (0.0, 0.0)


def test_whole_numbers_in_float16_must_be_equal() -> None:
    counts = np.array([1, 1023], np.float16)
    assert error_bounds(KeptRows(CHUNK, 96, "float16"), counts, "padding") == (0.0, 0.0)


def test_only_words_of_an_operator_that_packs_are_packed() -> None:
    packs = QuantizeRows(CHUNK, 64, "float32", PackedOutput(False))
    words, floats = np.zeros(1, np.uint32), np.zeros(1, np.float32)
    assert is_packed(packs, words)
    assert not is_packed(packs, floats)
    assert not is_packed(NORM, words)


def test_arguments_have_the_shapes_of_the_definition() -> None:
    args = example_arguments(NORM, np.random.default_rng(1), SIZES)
    shapes = [(arg.shape, str(arg.dtype)) for arg in args if isinstance(arg, np.ndarray)]
    assert shapes == [((5, 96), "float32"), ((96,), "float32"), ((5, 96), "float16")]


def test_arguments_follow_the_generator() -> None:
    first, again, other = (
        example_arguments(NORM, np.random.default_rng(seed), SIZES)[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_another_operator_makes_is_made_by_it() -> None:
    """A histogram must be that of the probabilities."""
    operator = SampleTopP(64)
    assert operator.maker is not None
    args = example_arguments(operator, np.random.default_rng(1), SIZES)
    given = operator.example_inputs(np.random.default_rng(1), SIZES)
    made = len(operator.maker.prim_func().params)
    changed = [
        index
        for index, (one, other) in enumerate(zip(args, given, strict=True))
        if not np.array_equal(one, other)
    ]
    assert changed
    assert max(changed) < made
    np.testing.assert_array_equal(args[0], given[0])

"""Codes chosen by inputs lose less of a matrix's results than the plain search's."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.minima import MinimaScheme
from gemma4_compile.tiny.safetensors_file import rounded

pytestmark = pytest.mark.parity

import torch  # noqa: E402

from gemma4_compile.calibration import gptq  # noqa: E402
from gemma4_compile.calibration.gptq import (  # noqa: E402
    InputStatistics,
    choose_codes,
    form_of,
)
from gemma4_compile.calibration.schemes import CalibratedScheme  # noqa: E402

SCHEME = GroupScheme(4, "float16")
MINIMA = MinimaScheme()
EITHER = pytest.mark.parametrize("scheme", [SCHEME, MINIMA], ids=["scale", "minima"])


def example(cols: int = 128, rows: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """A matrix, and inputs whose channels depend on one another."""
    random = np.random.default_rng(0)
    weight = random.standard_t(4, (rows, cols)).astype(np.float32)
    mixed = random.standard_normal((512, cols // 4)) @ random.standard_normal((cols // 4, cols))
    return weight, (mixed + 0.1 * random.standard_normal(mixed.shape)).astype(np.float32)


def chosen(weight: np.ndarray, inputs: np.ndarray, scheme: CalibratedScheme = SCHEME) -> np.ndarray:
    form = form_of(scheme)
    statistics = InputStatistics.of(torch.from_numpy(inputs), form.block_size)
    return scheme.load(choose_codes(torch.from_numpy(weight), statistics, form))


def loss(weight: np.ndarray, stored: np.ndarray, inputs: np.ndarray) -> float:
    return float((((weight - stored) @ inputs.T) ** 2).sum())


def plain(weight: np.ndarray, scheme: CalibratedScheme = SCHEME) -> np.ndarray:
    return scheme.load(scheme.store(weight, name="weight", first_row=0))


@EITHER
@pytest.mark.parametrize("cut", [False, True])
def test_results_of_the_inputs_are_closer(
    cut: bool, scheme: CalibratedScheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where statistics are cut, and the last block of eight groups with minima is short."""
    monkeypatch.setattr(gptq, "MAX_BLOCK", 160 if cut else gptq.MAX_BLOCK)
    weight, inputs = example(320)
    before = loss(weight, plain(weight, scheme), inputs)
    assert loss(weight, chosen(weight, inputs, scheme), inputs) < 0.5 * before


@EITHER
def test_independent_inputs_are_as_good_as_the_plain_search(scheme: CalibratedScheme) -> None:
    weight, _ = example()
    inputs = np.eye(128, dtype=np.float32)
    before = loss(weight, plain(weight, scheme), inputs)
    assert loss(weight, chosen(weight, inputs, scheme), inputs) < 1.02 * before


def test_storing_the_chosen_values_changes_nothing() -> None:
    weight, inputs = example()
    weight[3, :32] = 0
    stored = chosen(weight, inputs)
    np.testing.assert_array_equal(plain(stored), stored)


@EITHER
@pytest.mark.parametrize("kind", ["zeros", "one position", "a channel of zeros"])
def test_inputs_that_say_little_are_taken(kind: str, scheme: CalibratedScheme) -> None:
    weight, inputs = example()
    few = {
        "zeros": np.zeros_like(inputs),
        "one position": inputs[:1],
        "a channel of zeros": inputs * (np.arange(128) != 5).astype(np.float32),
    }[kind]
    error = np.linalg.norm(chosen(weight, few, scheme) - weight) / np.linalg.norm(weight)
    assert error < 0.3


LEVELS = np.random.default_rng(1).integers(-8, 8, (48, 128)).astype(np.float32)
STEPS = np.random.default_rng(2).uniform(-0.02, 0.02, (48, 4)).astype(np.float32).repeat(32, axis=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_that_were_trained_for_4_bits_stay_as_they_are(dtype: str) -> None:
    weight = rounded(LEVELS * STEPS, dtype)
    _, inputs = example()
    stored = chosen(weight, inputs)
    np.testing.assert_array_equal(np.rint(stored / STEPS), LEVELS)
    np.testing.assert_array_equal(stored, plain(weight))


def test_so_do_rows_of_them_in_a_matrix_with_others() -> None:
    weight, inputs = example()
    weight[::2] = rounded(LEVELS * STEPS, "bfloat16")[::2]
    stored = chosen(weight, inputs)
    np.testing.assert_array_equal(stored[::2], plain(weight)[::2])
    others = weight[1::2], stored[1::2], plain(weight)[1::2]
    assert loss(others[0], others[1], inputs) < 0.5 * loss(others[0], others[2], inputs)

"""The grid of a form is what its scheme stores."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.operators.packings import NIBBLES
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.minima import MinimaScheme

pytestmark = pytest.mark.parity

import torch  # noqa: E402

from gemma4_compile.calibration.form import joined, nearest  # noqa: E402
from gemma4_compile.calibration.gptq import form_of  # noqa: E402
from gemma4_compile.calibration.schemes import CalibratedScheme  # noqa: E402

SCHEMES = [GroupScheme(4, "float16"), GroupScheme(4, "float32"), MinimaScheme()]


@pytest.mark.parametrize("cols", [32, 256, 352])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_what_is_stored_lies_on_the_grid_of_its_terms(scheme: CalibratedScheme, cols: int) -> None:
    weight = np.random.default_rng(cols).normal(size=(5, cols)).astype(np.float32)
    form = form_of(scheme)
    stored = form.plain(weight, "w")
    terms = form.terms_of(stored)
    assert {term.shape[1] for term in terms} == {-(-cols // form.block_size)}
    grid = form.grid(terms, cols // 32)
    codes = NIBBLES.unpack(stored[0])
    levels = codes.astype(np.float64) + form.low
    steps, offsets = (one.numpy().repeat(32, axis=1) for one in (grid.steps, grid.offsets))
    np.testing.assert_array_equal((levels * steps - offsets).astype(np.float32), form.load(stored))
    again = form.stored(codes, terms)
    for one, other in zip(again, stored, strict=True):
        np.testing.assert_array_equal(one, other)


def test_levels_are_the_nearest_and_a_step_of_zero_has_one() -> None:
    weight = torch.tensor([-9.0, -0.3, 0.24, 0.26, 9.0])
    found = nearest(weight, torch.tensor(0.5), torch.tensor(1.0), 0, 15)
    assert found.tolist() == [0, 1, 2, 3, 15]
    assert nearest(weight, torch.tensor(0.0), torch.tensor(0.0), -7, 8).tolist() == [-7, 0, 0, 0, 8]


def test_terms_of_blocks_are_joined() -> None:
    mask = torch.tensor([[True, False]])
    ones, zeros = torch.ones(1, 2), torch.zeros(1, 2)
    found = joined(mask, (ones, ones[:, :, None]), (zeros, zeros[:, :, None]))
    assert [term.flatten().tolist() for term in found] == [[1, 0], [1, 0]]

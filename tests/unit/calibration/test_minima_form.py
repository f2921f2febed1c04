"""Scales and minima by a text: of no block more weighted error than the plain search's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.operators.minima import unpack_terms
from gemma4_compile.quantization.minima import MinimaScheme

pytestmark = pytest.mark.parity

import torch  # noqa: E402

from gemma4_compile.calibration.gptq import (  # noqa: E402
    InputStatistics,
    choose_codes,
    form_of,
)

MINIMA = MinimaScheme()


@settings(deadline=None, max_examples=15)  # the first call compiles the search
@given(
    rows=st.integers(1, 3),
    groups=st.integers(1, 11),
    positions=st.integers(1, 40),
    size=st.integers(-30, 18),
    seed=st.integers(0, 2**32 - 1),
)
def test_terms_with_minima_weigh_errors_by_the_inputs(
    rows: int, groups: int, positions: int, size: int, seed: int
) -> None:
    """Of every number of groups: no block's weighted error is above that of the plain search."""
    rng = np.random.default_rng(seed)
    each = np.exp2(size + rng.uniform(-6, 0, (rows, groups))) * (rng.random((rows, groups)) < 0.9)
    weight = (rng.standard_t(3, (rows, groups, 32)) * each[..., None]).astype(np.float32)
    weight = weight.reshape(rows, -1)
    inputs = rng.standard_normal((positions, weight.shape[1])) * rng.exponential(size=(1, 1))
    inputs[:, rng.random(weight.shape[1]) < 0.2] = 0
    strength = (inputs.astype(np.float32).astype(np.float64) ** 2).sum(0)
    form = form_of(MINIMA)
    before = form.plain(weight, "w")
    found = choose_codes(
        torch.from_numpy(weight),
        InputStatistics.of(torch.from_numpy(inputs.astype(np.float32)), form.block_size),
        form,
    )
    assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in before]
    sums = [weighted(weight, terms, strength) for _, terms in (found, before)]
    assert (sums[0] <= sums[1] * (1 + 1e-9)).all()
    assert np.array_equal(MINIMA.load(found)[:, :32], first_group(found))


def weighted(weight: np.ndarray, terms: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Weighted errors (rows, blocks) of the nearest codes on stored terms, in float64."""
    units, sizes = unpack_terms(terms)
    scales, minima = np.moveaxis(sizes * units[:, :, None].astype(np.float64), 3, 0)
    found = np.zeros(units.shape[:2])
    for group in range(weight.shape[1] // 32):
        x = weight[:, 32 * group : 32 * group + 32].astype(np.float64)
        step, offset = (one.reshape(len(x), -1)[:, group : group + 1] for one in (scales, minima))
        codes = np.clip(np.rint((x + offset) / np.where(step == 0, 1, step)), 0, 15)
        counts = strength[32 * group : 32 * group + 32] + 1e-6 * strength.mean()
        found[:, group // 8] += (counts * (codes * step - offset - x) ** 2).sum(1)
    return found


def first_group(stored: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The values of a row's first group, read by the documentation of `operators/minima.py`."""
    words, terms = stored
    codes = (words[:, :4, None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    units = np.stack([terms[:, 0] & np.uint32(0xFFFF0000), terms[:, 0] << 16]).view(np.float32)
    low = terms[:, 1:3].T & 15
    high = np.stack([terms[:, 3] & 3, (terms[:, 3] >> 16) & 3])
    scale, minimum = (low | (high << 4)).astype(np.float32) * units
    return codes.reshape(len(words), 32).astype(np.float32) * scale[:, None] - minimum[:, None]

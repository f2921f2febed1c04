"""Signed scales by a text."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.quantization.groups import GroupScheme

pytestmark = pytest.mark.parity

import torch  # noqa: E402

from gemma4_compile.calibration.group_form import GroupForm  # noqa: E402


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_scales_weigh_errors_by_the_inputs(dtype: str) -> None:
    rng = np.random.default_rng(4)
    weight = rng.standard_t(3, (64, 96)).astype(np.float32)
    strength = rng.exponential(size=96) ** 3
    form = GroupForm(GroupScheme(4, dtype))
    plain = form.plain(weight, "w")
    given = torch.from_numpy(weight.astype(np.float64))
    (found,) = form.search(given, torch.from_numpy(strength), form.terms_of(plain))
    assert np.array_equal(found.numpy().astype(dtype), found.numpy())

    def error(scales: np.ndarray) -> float:
        steps = scales.astype(np.float64).repeat(32, axis=1)
        levels = np.clip(np.rint(weight / np.where(steps == 0, 1, steps)), -7, 8)
        return float((strength * (levels * steps - weight) ** 2).sum())

    assert error(found.numpy()) < 0.95 * error(plain[1])

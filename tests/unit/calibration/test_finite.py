"""Numbers that are none are named by where they are found."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import QuantizationError

pytestmark = pytest.mark.parity

import torch  # noqa: E402

from gemma4_compile.calibration.finite import check_finite  # noqa: E402


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_one_number_is_enough(number: float) -> None:
    numbers = torch.ones(3, 4)
    check_finite(numbers, "the head")
    numbers[2, 1] = number
    with pytest.raises(QuantizationError, match="the head: what the model computes"):
        check_finite(numbers, "the head")

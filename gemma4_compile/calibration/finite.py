"""Numbers that a damaged checkpoint makes of a text."""

from __future__ import annotations

import torch

from gemma4_compile.errors import QuantizationError


def check_finite(numbers: torch.Tensor, where: str) -> None:
    """Raise QuantizationError if some of what a model computes until `where` is not finite."""
    if not bool(numbers.isfinite().all()):
        raise QuantizationError(
            f"{where}: what the model computes from the text until there is not finite",
            hint="the checkpoint is damaged: --report in place of --calibrate names the tensor",
        )

"""Rounding of activations in transformers' layers, of checkpoints that fix its steps.

transformers has it in layers of its own, which hold packed weights; here the layers have whole ones
and hooks. This module needs torch (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gemma4_compile.model_spec.parameters import INPUT_STEP, OUTPUT_STEP
from gemma4_compile.operators.static_rounding import HIGHEST, LOWEST
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.verification.attention_blocks import Untyped


@dataclass(frozen=True)
class Steps:
    """What the inputs and the outputs of a module are rounded to; 0 rounds nothing."""

    inputs: float
    outputs: float

    @classmethod
    def of(cls, module: str, read: RowReader, shapes: Mapping[str, tuple[int, ...]]) -> Steps:
        """Read those of a module; zeros where the model has none."""
        names = (f"{module}.{end}" for end in (INPUT_STEP, OUTPUT_STEP))
        return cls(*(float(read(one, 0, 1).ravel()[0]) if one in shapes else 0.0 for one in names))

    def apply(self, module: torch.nn.Linear) -> None:
        """Let a module round."""

        def before(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> Untyped:
            return (rounded(given[0], self.inputs), *given[1:])

        def after(module: torch.nn.Module, given: Untyped, result: torch.Tensor) -> torch.Tensor:
            return rounded(result, self.outputs)

        if self.inputs:
            module.register_forward_pre_hook(before)
        if self.outputs:
            module.register_forward_hook(after)


def rounded(values: torch.Tensor, step: float) -> torch.Tensor:
    """Values at the nearest whole steps that int8 has; as they are for a step of 0."""
    if step == 0:
        return values
    size = torch.tensor(step, dtype=values.dtype, device=values.device)
    return torch.clamp(torch.round(values / size), LOWEST, HIGHEST) * size


def round_layer(
    layer: torch.nn.Module, index: int, read: RowReader, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Let the linear modules of a layer round as the checkpoint says."""
    for name, module in layer.named_modules():
        if isinstance(module, torch.nn.Linear):
            Steps.of(f"layers.{index}.{name}", read, shapes).apply(module)


def rounds(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a model's tensors have steps among them."""
    return any(name.endswith(f".{INPUT_STEP}") for name in shapes)

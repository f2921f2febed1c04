"""Hooks that round as transformers' own layers of packed weights do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.integrations.gemma_quant import QuantizedLinear, apply_srq

from gemma4_compile.verification.static_rounding import Steps, round_layer, rounded, rounds

pytestmark = pytest.mark.parity
VALUES = torch.tensor([0.5, 1.5, -2.5, 0.2, 300.0, -300.0])
NAMES = ("input_activation_scale", "output_activation_scale")


@pytest.mark.parametrize("step", [1.0, 0.0, 0.3])
def test_values_are_rounded_as_transformers_does(step: float) -> None:
    assert torch.equal(rounded(VALUES, step), apply_srq(VALUES, torch.tensor(step)))


@pytest.mark.parametrize("steps", [(0.5, 0.25), (0.5, 0.0), (0.0, 0.25)])
def test_linear_modules_of_a_layer_round(steps: tuple[float, float]) -> None:
    levels = torch.randint(-128, 128, (3, 6), dtype=torch.int8)
    theirs = QuantizedLinear(6, 3)
    theirs.weight.data, theirs.weight_scale.data = levels, torch.full((3, 1), 0.01)
    theirs.input_activation_scale.data = torch.tensor(steps[0])
    theirs.output_activation_scale.data = torch.tensor(steps[1])
    linear = torch.nn.Linear(6, 3, bias=False)
    linear.weight.data = levels * torch.tensor(0.01)
    layer = torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict({"up_proj": linear})})
    stored = {f"layers.4.mlp.up_proj.{end}": step for end, step in zip(NAMES, steps, strict=True)}
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(stored, ())

    round_layer(layer, 4, lambda name, begin, end: np.full(1, stored[name], np.float32), shapes)

    with torch.no_grad():
        assert torch.equal(linear(VALUES), theirs(VALUES))
    assert rounds(shapes)


def test_a_module_without_steps_stays_as_it_is() -> None:
    def read(name: str, begin: int, end: int) -> np.ndarray:
        raise AssertionError(name)

    assert Steps.of("lm_head", read, {"lm_head.weight": (3, 6)}) == Steps(0.0, 0.0)
    assert not rounds({"lm_head.weight": (3, 6)})

"""Memory of a picture's activations, and the budgets that a target's bindings allow."""

from __future__ import annotations

import pytest

from gemma4_compile.media.sizes import DEFAULT_BUDGET
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.vision.memory import largest_budget, picture_memory

MIB = 1 << 20
PICTURES = frozenset({Modality.TEXT, Modality.IMAGE})


def config(size: str) -> Gemma4Config:
    return Gemma4Config.from_preset(f"gemma-4-{size}-it", PICTURES)


def test_a_text_model_has_none() -> None:
    memory = picture_memory(Gemma4Config.from_preset("gemma-4-E2B-it"), "float16")
    assert memory.tensors == ()
    assert memory.together == ()


def test_the_largest_tensors_of_a_block() -> None:
    assert max(picture_memory(config("E2B"), "float16").tensors) == 9 * 3072 * 4  # up
    assert max(picture_memory(config("31B"), "float16").tensors) == 9 * 4304 * 2  # gated
    assert max(picture_memory(config("31B"), "float32").tensors) == 9 * 4304 * 4
    assert max(picture_memory(config("12B"), "float16").tensors) == 6912 * 4  # pixels
    assert picture_memory(config("E2B"), "float16").positions == DEFAULT_BUDGET


@pytest.mark.parametrize(
    ("size", "dtype", "budget"),
    [
        ("E2B", "float16", 1120),
        ("E2B", "float32", 1120),
        ("31B", "float16", 1120),
        ("31B", "float32", 560),  # 1120 x 9 x 4304 float32 are 165 MiB
        ("12B", "float32", 1120),
    ],
)
def test_budget_of_a_browsers_bindings(size: str, dtype: str, budget: int) -> None:
    assert largest_budget(config(size), dtype, 128 * MIB) == budget
    assert largest_budget(config(size), dtype, None) == 1120


def test_no_budget_fits_tiny_bindings() -> None:
    assert largest_budget(config("31B"), "float32", MIB) == 0

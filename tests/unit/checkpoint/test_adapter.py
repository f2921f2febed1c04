"""Next to PEFT: tests/parity/test_adapters.py; what is refused: test_adapter_source.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.checkpoint.adapter_merge import stack_layout
from gemma4_compile.checkpoint.safetensors_file import TensorInfo


@pytest.mark.parametrize(
    ("a", "b", "layout"),
    [((8, 6), (10, 8), "new"), ((8, 10), (6, 8), "old"), ((7, 6), (10, 7), None),
     ((8, 5), (10, 8), None), ((8, 6), (10, 4), None)],
)  # fmt: skip
def test_factors_of_experts_are_known_by_their_shapes(
    a: tuple[int, ...], b: tuple[int, ...], layout: str | None
) -> None:
    base, *factors = (
        TensorInfo("x", "F32", shape, Path("x"), 0, 0) for shape in ((4, 10, 6), a, b)
    )
    assert stack_layout(base, *factors) == layout

"""Tensors by the module that they are of, and what four bits hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.modules import by_module, held_exactly
from tests.unit.checkpoint.quantised.files import written


def test_weights_belong_to_a_module_only_beside_its_other_tensors(tmp_path: Path) -> None:
    names = ("a.weight", "a.scale", "b.weight", "c.x.absmax", "d.e.weight", "weight")
    stored = written(tmp_path, {name: np.zeros(1, np.float32) for name in names})
    modules, rest = by_module(stored, ("scale", "x.absmax"), ("weight",))
    assert {name: set(parts) for name, parts in modules.items()} == {
        "a": {"scale", "weight"},
        "c": {"x.absmax"},
    }
    assert set(rest) == {"b.weight", "d.e.weight", "weight"}


@pytest.mark.parametrize(
    ("bits", "is_symmetric", "group", "is_exact"),
    [
        (4, True, 32, True),
        (2, True, 128, True),
        (4, True, None, True),
        (4, True, 16, False),
        (4, True, 48, False),
        (4, False, 32, False),
        (8, True, 32, False),
    ],
)
def test_four_bits_hold_runs_of_32(
    bits: int, is_symmetric: bool, group: int | None, is_exact: bool
) -> None:
    assert held_exactly(bits=bits, is_symmetric=is_symmetric, group=group) == is_exact

"""A kernel's description finds the class that made it: a kind is one operator's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from gemma4_compile.operators.base import operator_of
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.rows import CHUNK

NORM = RmsNorm(CHUNK, 64, 1e-6, "float16")


def test_class_without_a_kind_leaves_its_parents_alone() -> None:
    @dataclass(frozen=True)
    class SharedForm(RmsNorm):
        extra: int = 0

    assert SharedForm.kind == RmsNorm.kind
    assert type(operator_of(NORM.prim_func())) is RmsNorm


def test_kind_of_another_operator_is_refused() -> None:
    with pytest.raises(TypeError, match=f"'{RmsNorm.kind}' is RmsNorm's already.*one of its own"):

        @dataclass(frozen=True)
        class Impostor(RmsNorm):
            kind: ClassVar[str] = RmsNorm.kind

    assert type(operator_of(NORM.prim_func())) is RmsNorm

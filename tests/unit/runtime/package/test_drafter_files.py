"""A package as it would be without its drafter."""

from __future__ import annotations

import pytest

from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.package.drafter_files import (
    HINT,
    hint_for,
    is_of_drafter,
    without_drafter,
)

OWN = {"params_shard_0.bin": (3, "a"), "tensor-cache.json": (2, "b")}
DRAFTERS = {"params_shard_drafter_0.bin": (4, "c"), "drafter-tensor-cache.json": (5, "d")}


@pytest.mark.parametrize(
    ("name", "expected"), [*((name, False) for name in OWN), *((name, True) for name in DRAFTERS)]
)
def test_files_of_the_drafter_are_known_by_name(name: str, expected: bool) -> None:
    assert is_of_drafter(name) == expected
    assert ("--draft 0" in hint_for(name)) == expected
    assert hint_for(name).endswith(HINT)


def test_without_the_drafter_a_package_lists_none_of_its_files() -> None:
    build: dict[str, object] = {"target": "cpu", "drafter": {"kind": "tiny"}}
    whole = Provenance("model.so", build, {**OWN, **DRAFTERS})
    rest = without_drafter(whole)
    assert (rest.library, rest.files, rest.build) == ("model.so", OWN, {"target": "cpu"})
    assert whole.build == build

"""Tunings are data: every file is read, and a mistake in one is named."""

import json
from pathlib import Path

import pytest

from gemma4_compile.targets import TARGETS
from gemma4_compile.targets.tuning import FOLDER, GemvTuning, Tuning, from_fields, read_tuning


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_holds_known_fields_and_belongs_to_limits(path: Path) -> None:
    tuning = read_tuning(path.stem)

    specs = [spec for target in TARGETS.values() for spec in target.limits.values()]
    assert any(tuning == spec.tuning for spec in specs)


def test_a_file_changes_only_what_it_names() -> None:
    tuning = from_fields(Tuning, json.loads('{"gemv": {"threads": 64}}'))

    assert tuning == Tuning(gemv=GemvTuning(threads=64))


@pytest.mark.parametrize("values", [{"gemw": {}}, {"gemv": {"thread": 64}}])
def test_an_unknown_field_is_named(values: dict[str, dict[str, int]]) -> None:
    with pytest.raises(ValueError, match=r"has no field (gemw|thread)$"):
        from_fields(Tuning, values)

"""Tunings are data: every file is read, and a mistake in one is named."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from benchmarks.webgpu.candidates import CANDIDATES
from gemma4_compile.targets import TARGETS
from gemma4_compile.targets.tuning import (
    FOLDER,
    FewRowTuning,
    FusionTuning,
    GemmTuning,
    GemvTuning,
    Tuning,
    from_fields,
    read_tuning,
)


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


def paths(values: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Places of the values in nested dictionaries or dataclasses."""
    if isinstance(values, Mapping):
        items = list(values.items())
    elif is_dataclass(values):
        items = [(one.name, getattr(values, one.name)) for one in fields(values)]
    else:
        yield path
        return
    for name, value in items:
        yield from paths(value, (*path, name))


def test_what_no_file_sets_and_no_search_tries_is_a_constant() -> None:
    """By its name; but not the bounds of fusions, by which passes are tested."""
    files = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
    tried = [one for family in CANDIDATES.values() for one in family.candidates]
    used = {path[-1] for values in (*files, *tried) for path in paths(values) if path}
    bounds = {one.name for one in fields(FusionTuning)}
    assert {path[-1] for path in paths(Tuning())} - used - bounds == set()
    assert not {"min_units_per_lane", "wide_threads", "small_m"} & {
        one.name for kind in (GemvTuning, FewRowTuning, GemmTuning) for one in fields(kind)
    }

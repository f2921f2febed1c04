"""What is kept of a package whose other part is made anew; test_pipeline.py makes both."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.input_files import FileDigest, to_json
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.package import files
from gemma4_compile.package.partial_build import (
    CALIBRATION,
    FIT,
    MEMORY,
    NONFINITE,
    Kept,
    PartialBuild,
    lock_of,
    rest_of_package,
)

BUILD: dict[str, Any] = {
    "recipe": "f32",
    "activations": "float",
    "versions": {"python": "3"},
    "requirements": {},
    "source": {"config": "sha256:3"},
    "modalities": ["text"],
    "parameter_schema_id": "sha256:1",
    NONFINITE: None,
}
LIBRARY = (*abi.LICENCE_FILES, "model.so")
FILES = (*LIBRARY, "params_shard_0.bin", abi.CHAT_CONFIG_FILE, *abi.NUMERICS_FILES)
WEIGHTS = (abi.CHAT_CONFIG_FILE, "params_shard_0.bin")


def make(directory: Path, **build: Any) -> Path:
    for name in FILES:
        (directory / name).write_text("{}")
    files.finish(directory, "model.so", BUILD | build)
    return directory


@pytest.mark.parametrize(
    ("renewed", "kept"),
    [
        ("weights", Kept("model.so", LIBRARY, None, inputs=None)),
        ("library", Kept(None, tuple(sorted(WEIGHTS)), None, inputs=None)),
    ],
)
def test_the_rest_is_kept_without_its_numerics_report(
    renewed: PartialBuild, kept: Kept, tmp_path: Path
) -> None:
    found = rest_of_package(make(tmp_path), renewed, BUILD)
    assert replace(found, libraries=(), build={}, sha256={}) == kept
    assert found.sha256 == dict.fromkeys(kept.files, hashlib.sha256(b"{}").hexdigest())
    assert [one.file for one in found.libraries] == (["model.so"] if kept.library else [])


def test_nothing_is_kept_where_nothing_is(tmp_path: Path) -> None:
    assert rest_of_package(tmp_path / "out", "library", BUILD) == Kept()


@pytest.mark.parametrize("name", ["versions", "requirements"])
def test_what_does_not_change_the_rest_may_differ(name: str, tmp_path: Path) -> None:
    make(tmp_path)
    assert rest_of_package(tmp_path, "weights", BUILD | {name: "other"}).library == "model.so"


@pytest.mark.parametrize(
    ("renewed", "change", "named"),
    [
        ("weights", {"recipe": "q4f16"}, r"with another `recipe` \(f32, asked for: q4f16\)"),
        ("weights", {"activations": "int8"}, "with another `activations`"),
        ("library", {"recipe": "q4f16"}, "with another `recipe`"),
        ("library", {"parameter_schema_id": "sha256:2"}, "with another `parameter_schema_id`"),
        ("library", {"media": {"image": {}}}, r"with another `media` \(by --image-tokens or --im"),
        (
            "library",
            {"source": {"config": "sha256:4"}, "modalities": ["image", "text"]},
            r"with another `modalities` \(by --modalities\)",
        ),
        ("weights", {"drafter": {"kind": "tiny"}}, "without a drafter"),
        ("weights", {CALIBRATION: {"method": "m"}}, "without --calibrate"),
        ("library", {NONFINITE: {}}, "made without --allow-nonfinite"),
        ("weights", {NONFINITE: {}}, "made without --allow-nonfinite"),
    ],
)
def test_what_does_not_fit_is_named(
    renewed: PartialBuild, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(UsageError, match=f"{named}.*: the new {renewed} would not fit"):
        rest_of_package(tmp_path, renewed, BUILD | change)


def test_a_library_keeps_how_its_weights_were_calibrated(tmp_path: Path) -> None:
    make(tmp_path, **{CALIBRATION: {"method": "m"}})
    assert rest_of_package(tmp_path, "library", BUILD).calibration == {"method": "m"}


@pytest.mark.parametrize("renewed", ["weights", "library"])
def test_what_a_budget_chose_stays_unless_another_chooses(
    renewed: PartialBuild, tmp_path: Path
) -> None:
    old, new = {"needs_bytes": 1}, {"needs_bytes": 2}
    found = rest_of_package(make(tmp_path, **{FIT: old, MEMORY: {"kv": 1}}), renewed, BUILD)
    rest = BUILD | {MEMORY: {"kv": 2}}
    assert found.with_rest(dict(rest))[FIT] == old
    assert found.with_rest({**rest, FIT: new})[FIT] == new
    kept = {"kv": 1 if found.library else 2}
    assert found.with_rest(dict(rest))[MEMORY] == kept
    assert rest_of_package(tmp_path, renewed, {**rest, FIT: new}).fitted == old


def test_a_library_may_take_other_activations(tmp_path: Path) -> None:
    make(tmp_path)
    assert rest_of_package(tmp_path, "library", BUILD | {"activations": "int8"}).files


def test_activations_are_known_by_their_old_name(tmp_path: Path) -> None:
    make(tmp_path, activations="exact")
    assert rest_of_package(tmp_path, "weights", BUILD).library == "model.so"
    with pytest.raises(UsageError, match="another `activations`"):
        rest_of_package(tmp_path, "weights", BUILD | {"activations": "int8"})


def test_counts_go_with_the_weights(tmp_path: Path) -> None:
    make(tmp_path, **{NONFINITE: {"norm.weight": 3}})
    allowed = BUILD | {NONFINITE: {}}
    assert rest_of_package(tmp_path, "library", allowed).nonfinite == {"norm.weight": 3}
    assert rest_of_package(tmp_path, "weights", allowed).nonfinite is None
    with pytest.raises(UsageError, match="made with --allow-nonfinite"):
        rest_of_package(tmp_path, "library", BUILD)


def test_a_package_of_an_older_version_allowed_nothing(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_text("{}")
    older = {name: value for name, value in BUILD.items() if name != NONFINITE}
    files.finish(tmp_path, "model.so", older)
    assert rest_of_package(tmp_path, "weights", BUILD).library == "model.so"


MODEL = {"config.json": FileDigest(1, "a"), "model.safetensors": FileDigest(2, "b")}
CONFIG = {"model": {"config.json": FileDigest(1, "c")}}


def test_digests_of_what_is_kept_stay(tmp_path: Path) -> None:
    make(tmp_path, inputs=to_json({"model": MODEL}), library_alone=True)
    kept = rest_of_package(tmp_path, "library", BUILD)
    assert lock_of(kept, "library", CONFIG) == {
        "library_alone": True,
        "inputs": to_json({"model": {**MODEL, **CONFIG["model"]}}),
    }
    kept = rest_of_package(tmp_path, "weights", BUILD)
    assert lock_of(kept, "weights", {"model": MODEL}) == {
        "library_alone": True,
        "inputs": to_json({"model": MODEL}),
    }
    assert lock_of(Kept(), None, {"model": MODEL}) == {"inputs": to_json({"model": MODEL})}


def test_a_package_without_digests_gets_no_half_of_them(tmp_path: Path) -> None:
    kept = rest_of_package(make(tmp_path), "library", BUILD)
    assert lock_of(kept, "library", CONFIG) == {"library_alone": True}


def test_a_damaged_package_is_an_error(tmp_path: Path) -> None:
    (tmp_path / abi.PROVENANCE_FILE).write_text("{}")
    with pytest.raises(ArtifactError):
        rest_of_package(tmp_path, "library", BUILD)

"""Packages in the hub's cache: their names, what is needed of one, and what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.package.hub_snapshot import forgetting_damage, hub_name, needed_files
from gemma4_compile.runtime.package.integrity import DamagedFileError


def with_libraries(*devices: str) -> Provenance:
    """A package with a library for each device, the first of them its main one."""
    files = {f"model-{device}.x": (1, "") for device in devices}
    records = tuple(
        LibraryRecord(f"model-{d}.x", d, d, d, "default", "float", None, {}) for d in devices
    )
    return Provenance(f"model-{devices[0]}.x", {}, {**files, "shard.bin": (1, "")}, records)


@pytest.mark.parametrize(
    ("devices", "pages", "system", "left_out"),
    [
        (("webgpu", "cpu", "cuda", "metal"), False, "linux", ("webgpu", "metal")),
        (("webgpu", "cpu", "cuda", "metal"), True, "linux", ("metal",)),
        (("webgpu", "cpu", "cuda", "metal"), False, "darwin", ("webgpu", "cuda")),
        (("webgpu", "metal"), True, "linux", ("metal",)),
        (("cpu",), True, "linux", ()),
    ],
)
def test_libraries_of_other_machines_are_left_out(
    devices: tuple[str, ...], pages: bool, system: str, left_out: tuple[str, ...]
) -> None:
    found = needed_files(with_libraries(*devices), drafter=True, pages=pages, system=system)
    kept = [f"model-{device}.x" for device in devices if device not in left_out]
    assert sorted(found) == sorted([*kept, "shard.bin"])


@pytest.mark.parametrize(
    ("devices", "pages", "system"),
    [
        (("webgpu",), False, "linux"),
        (("metal",), True, "linux"),
        (("webgpu", "cuda"), False, "darwin"),
    ],
)
def test_nothing_is_needed_where_no_library_is_for_this_machine(
    devices: tuple[str, ...], pages: bool, system: str
) -> None:
    given = with_libraries(*devices)
    assert not needed_files(given, drafter=True, pages=pages, system=system)


def test_damage_elsewhere_is_left_to_its_owner(tmp_path: Path) -> None:
    (tmp_path / "model.so").write_bytes(b"mine")
    with pytest.raises(DamagedFileError), forgetting_damage(tmp_path):
        raise DamagedFileError("damaged", file="model.so")
    assert (tmp_path / "model.so").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("owner/name", ("owner/name", None)),
        ("owner/name@v1", ("owner/name", "v1")),
        ("owner/name@refs/pr/1", ("owner/name", "refs/pr/1")),
        ("owner/name@", None),
        ("name", None),
        ("./owner/name", ("owner/name", None)),
        ("../owner/name", None),
        ("/owner/name", None),
        ("a/b/c", None),
    ],
)
def test_ids_are_told_from_directories(
    given: str,
    expected: tuple[str, str | None] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_name(Path(given)) == expected


def test_a_directory_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("owner/name").mkdir(parents=True)
    assert hub_name(Path("owner/name")) is None

"""What lies beside the files of a package is kept where the package is replaced."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.output_directory import check_free, output_directory


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of one file, with things of others beside it."""
    path = tmp_path / "out"
    (path / "folder" / "inner").mkdir(parents=True)
    for name in ("shard", "notes.txt", "report", "folder/inner/deep"):
        (path / name).write_text(name)
    (path / "link").symlink_to(tmp_path)
    listed = Provenance(None, {}, {"shard": (5, "0" * 64)})
    (path / abi.PROVENANCE_FILE).write_text(json.dumps(listed.to_json()))
    return path


def renew(package: Path, *, force: bool = False) -> None:
    with output_directory(package, force=force) as partial:
        (partial / "report").write_text("new")


@pytest.mark.parametrize("links", [True, False])
def test_it_stays_as_it_is(
    links: bool, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = (package / "notes.txt").stat().st_ino

    def refuse(*_: object, **__: object) -> None:
        raise OSError

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    renew(package)

    assert {path.name for path in package.iterdir()} == {"notes.txt", "folder", "link", "report"}
    assert (package / "notes.txt").read_text() == "notes.txt"
    assert ((package / "notes.txt").stat().st_ino == number) == links
    assert (package / "folder/inner/deep").read_text() == "folder/inner/deep"
    assert (package / "link").readlink() == tmp_path
    assert (package / "report").read_text() == "new", "the package's own files come first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_force_replaces_all(package: Path) -> None:
    renew(package, force=True)
    assert {path.name for path in package.iterdir()} == {"report"}


def test_none_is_replaced_by_one_of_its_name(package: Path) -> None:
    check_free(package, ["shard", "model.wasm", abi.PROVENANCE_FILE])
    for name in ("report", "link", "folder"):
        with pytest.raises(UsageError, match=f"`{name}` in .* is none of the package's") as caught:
            check_free(package, ["shard", name])
        assert "--force" in str(caught.value.hint)

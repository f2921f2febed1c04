"""A folder for a host of static files: page, packages and the list that names them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from tools import site

ROOT = Path(__file__).parents[2]


def write_package(folder: Path, *targets: str, model: str = "") -> Path:
    """Write a package without a meaning, with a library for each of these targets."""
    folder.mkdir()
    libraries = {"webgpu": "model.wasm", "cpu": "model.so"}
    names = [libraries[target] for target in targets] + [abi.TENSOR_CACHE_FILE]
    for name in names:
        (folder / name).write_text(name)
    (folder / "notes.txt").write_text("not of the package")
    form = {"limits": "default", "activations": "float", "float16": None}
    record: dict[str, object] = {**form, "requirements": {}}
    values = {
        "schema": "gemma4_compile.package",
        "schema_version": 1,
        "library": libraries[targets[0]],
        "libraries": [
            {"file": libraries[name], "name": name, "target": name, "device": name, **record}
            for name in targets
        ],
        "build": {"target": targets[0], "source": {"kind": "hub", "model": model}},
        "files": {name: {"nbytes": len(name), "sha256": "0" * 64} for name in names},
    }
    (folder / abi.PROVENANCE_FILE).write_text(json.dumps(values), "utf-8")
    return folder


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html>")
    (page / "models.json").write_text('{"models": []}')
    return page


def test_what_the_list_names_is_there(page: Path, tmp_path: Path) -> None:
    packages = [
        write_package(tmp_path / "e2b", "webgpu"),
        write_package(tmp_path / "both", "cpu", "webgpu"),
    ]
    written = tmp_path / "site"
    site.write_site(written, page, packages)
    models = json.loads((written / "models.json").read_text("utf-8"))["models"]
    assert [model["address"] for model in models] == ["./e2b/", "./both/"]
    assert [model["size"] for model in models] == [len("model.wasm") + len("tensor-cache.json")] * 2
    assert (written / "index.html").is_file()
    for name in ("e2b", "both"):
        found = {path.name for path in (written / name).iterdir()}
        assert found == {"model.wasm", abi.TENSOR_CACHE_FILE, abi.PROVENANCE_FILE}, "for browsers"


def test_two_packages_of_one_model_have_names_of_their_own(page: Path, tmp_path: Path) -> None:
    packages = [
        write_package(tmp_path / "q4", "webgpu", model="google/gemma-4-E2B-it"),
        write_package(tmp_path / "q8", "webgpu", model="google/gemma-4-E2B-it"),
        write_package(tmp_path / "e4b", "webgpu", model="google/gemma-4-E4B-it"),
    ]
    site.write_site(tmp_path / "site", page, packages)
    models = json.loads((tmp_path / "site" / "models.json").read_text("utf-8"))["models"]
    assert [model["name"] for model in models] == ["q4", "q8", "gemma-4-E4B-it"]


def test_it_is_written_over_nothing(page: Path, tmp_path: Path) -> None:
    package = write_package(tmp_path / "e2b", "webgpu")
    with pytest.raises(UsageError, match="is there"):
        site.write_site(page, page, [package])


@pytest.mark.parametrize("name", ["assets", "a b", "index.html"])
def test_a_package_needs_a_folder_of_its_own(name: str, page: Path, tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    package = write_package(tmp_path / "packages" / name, "webgpu")
    with pytest.raises(UsageError, match="another name"):
        site.write_site(tmp_path / "site", page, [package])
    assert not (tmp_path / "site").exists()


def test_two_packages_of_one_name_are_refused(page: Path, tmp_path: Path) -> None:
    package = write_package(tmp_path / "e2b", "webgpu")
    with pytest.raises(UsageError, match="another name"):
        site.write_site(tmp_path / "site", page, [package, package])


def test_a_package_for_other_devices_is_refused(page: Path, tmp_path: Path) -> None:
    package = write_package(tmp_path / "native", "cpu")
    with pytest.raises(ArtifactError, match="no library for browsers"):
        site.write_site(tmp_path / "site", page, [package])


def test_the_command_says_what_is_no_package(tmp_path: Path) -> None:
    command = [sys.executable, "tools/site.py", str(tmp_path / "site"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "\nhint: " in done.stderr

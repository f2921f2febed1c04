from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.checkpoint.safetensors_file import read_header
from gemma4_compile.package.digest import package_digest
from gemma4_compile.tiny.safetensors_file import write_safetensors

DIRECTORY = {"kind": "directory", "config": "sha256:1"}
HUB = {"kind": "hub", "model": "google/gemma-4-E2B-it", "revision": "a" * 40}


def provenance(**changes: Any) -> dict[str, Any]:
    versions = {"gemma4-compile": "1.0", "apache-tvm": "0.27", "python": "3.11"}
    return {"source": DIRECTORY, "versions": versions, "recipe": "q4f16", **changes}


def checkpoint(folder: Path, seed: int) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    weights = np.random.default_rng(seed).standard_normal((64, 64)).astype("float32")
    write_safetensors(folder / "model.safetensors", {"weight": weights}, "float32")
    return Checkpoint(folder, {}, {}, read_header(folder / "model.safetensors"))


def test_equal_builds_have_equal_names(tmp_path: Path) -> None:
    first = package_digest(provenance(), checkpoint(tmp_path / "a", 1))
    assert first == package_digest(provenance(), checkpoint(tmp_path / "b", 1))
    assert first.startswith("sha256:")


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": "q4f32"},
        {"source": {**DIRECTORY, "config": "sha256:2"}},
        {"versions": {"gemma4-compile": "1.1", "apache-tvm": "0.27"}},
        {"limits": "h200"},
    ],
)
def test_another_build_has_another(tmp_path: Path, changes: dict[str, Any]) -> None:
    weights = checkpoint(tmp_path, 1)
    assert package_digest(provenance(), weights) != package_digest(provenance(**changes), weights)


def test_other_weights_of_a_directory_have_another(tmp_path: Path) -> None:
    first = package_digest(provenance(), checkpoint(tmp_path / "a", 1))
    assert first != package_digest(provenance(), checkpoint(tmp_path / "b", 2))


@pytest.mark.parametrize("read", [lambda path: checkpoint(path, 1), lambda path: None])
def test_weights_on_the_hub_are_named_by_their_revision(
    tmp_path: Path, read: Callable[[Path], Checkpoint | None]
) -> None:
    """So that a library that is built without them is the same."""
    found = package_digest(provenance(source=HUB), read(tmp_path))
    assert found == package_digest(provenance(source=HUB), None)
    other = {**HUB, "revision": "b" * 40}
    assert found != package_digest(provenance(source=other), None)


def test_another_python_changes_nothing() -> None:
    versions = {"gemma4-compile": "1.0", "apache-tvm": "0.27", "python": "3.12"}
    assert package_digest(provenance(versions=versions), None) == package_digest(provenance(), None)

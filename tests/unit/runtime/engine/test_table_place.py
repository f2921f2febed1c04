"""Where the table of per-layer embeddings is, by what was asked and by what has room."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.table_place import table_window
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package.package import Package


class Bounded(Device):
    """The CPU, as if it had so much memory left."""

    free: int | None = None

    def free_bytes(self) -> int | None:
        return self.free


@pytest.fixture(scope="module")
def opened(tiny_package: Path) -> tuple[Package, dict[str, Any]]:
    package = Package.open(tiny_package)
    library = NativeLibrary(package.library_path)
    return package, json.loads(library.metadata())


def is_on_host(
    opened: tuple[Package, dict[str, Any]],
    free: int | None,
    place: str | None,
    unused: int = 0,
    most: int | None = None,
) -> bool:
    package, metadata = opened
    device = Bounded("cpu")
    object.__setattr__(device, "free", free)
    return table_window(package, metadata, device, place, 24, unused, most) is not None


def test_what_was_asked_for_decides(opened: tuple[Package, dict[str, Any]]) -> None:
    assert is_on_host(opened, None, "host")
    assert is_on_host(opened, 1 << 40, "host")
    assert not is_on_host(opened, 1, "gpu")


def test_the_device_where_it_has_room(opened: tuple[Package, dict[str, Any]]) -> None:
    planned = opened[1]["artifact"]["resources"]["estimated_device_memory_bytes"]
    assert not is_on_host(opened, None, None)
    assert not is_on_host(opened, planned, None)
    assert is_on_host(opened, planned - 1, None)
    assert not is_on_host(opened, planned - 1, None, unused=1)
    assert is_on_host(opened, planned - 2, None, unused=1)


def test_a_budget_is_held_where_more_is_free(opened: tuple[Package, dict[str, Any]]) -> None:
    planned = opened[1]["artifact"]["resources"]["estimated_device_memory_bytes"]
    assert not is_on_host(opened, 1 << 40, None, most=planned)
    assert is_on_host(opened, 1 << 40, None, most=planned - 1)
    assert is_on_host(opened, planned - 1, None, most=1 << 40)
    assert not is_on_host(opened, 1 << 40, "gpu", most=1)


def test_a_model_without_a_table_cannot_have_it_on_the_host(
    opened: tuple[Package, dict[str, Any]],
) -> None:
    package, metadata = opened
    without = {name: value for name, value in metadata.items() if name != "per_layer_embedding"}
    assert not is_on_host((package, without), 1, None)
    with pytest.raises(UsageError, match="has no table of per-layer embeddings"):
        is_on_host((package, without), None, "host")


def test_a_description_that_is_not_of_these_weights_is_refused(
    opened: tuple[Package, dict[str, Any]],
) -> None:
    package, metadata = opened
    table = metadata["per_layer_embedding"]
    (split,) = table["splits"]
    for changed in ({**split, "rows": 1000}, {**split, "tensors": ["none.weight"]}):
        damaged = {**metadata, "per_layer_embedding": {**table, "splits": [changed]}}
        with pytest.raises(ArtifactError, match="table of per-layer embeddings"):
            is_on_host((package, damaged), None, "host")

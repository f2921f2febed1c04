"""The list of models beside the page that `gemma4-serve` serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gemma4_compile import abi
from gemma4_compile.runtime.server.pages import folder_routes, folders_routes


def write(folder: Path, **build: Any) -> Path:
    folder.mkdir()
    needs = {"weights_bytes": 300, "kv_sliding_bytes": 20, "kv_full_bytes": 4, "subgroup_size": 32}
    names = {"model.wasm": 7, "model-f16.wasm": 1000, "params_shard_0.bin": 50}
    record = {
        **{"target": "webgpu", "device": "webgpu", "limits": "default", "activations": "float"},
        **{"float16": None, "requirements": needs},
    }
    values = {
        "schema": "gemma4_compile.package",
        "schema_version": 1,
        "library": "model.wasm",
        "libraries": [
            {"file": "model.wasm", "name": "default", **record},
            {"file": "model-f16.wasm", "name": "f16", **record},
        ],
        "build": {"target": "webgpu", **build},
        "files": {name: {"nbytes": n, "sha256": "0" * 64} for name, n in names.items()},
    }
    (folder / abi.PROVENANCE_FILE).write_text(json.dumps(values), "utf-8")
    return folder


def offered(package: Path, page: Path | None) -> Any:
    client = TestClient(Starlette(routes=folder_routes(page, package)))
    answer = client.get("/models.json")
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    (model,) = answer.json()["models"]
    return model


def test_the_package_is_offered_with_what_one_device_needs(tmp_path: Path) -> None:
    package = write(tmp_path / "tiny-web", modalities=["audio", "image", "text", "smell"])
    assert offered(package, None) == {
        "name": "tiny-web",
        "address": "/package/",
        "size": 57,
        "memory": 324,
        "modalities": ["text", "image", "audio"],
    }


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"kind": "tiny"}, "tiny"),
        ({"kind": "hub", "model": "google/gemma-4-E2B-it"}, "gemma-4-E2B-it"),
        ({"kind": "hub", "model": "x" * 100}, "x" * 80),
        ({"kind": "hub", "model": "\U0001f41f" * 100}, "\U0001f41f" * 40),  # of 80 words in UTF-16
        ({"kind": "hub", "model": "a\nb\u202ec"}, "a b c"),
        ({"kind": "hub", "model": " "}, "folder"),
        ("odd", "folder"),
    ],
)
def test_it_has_the_name_of_its_model(source: object, name: str, tmp_path: Path) -> None:
    assert offered(write(tmp_path / "folder", source=source), None)["name"] == name


def test_a_partial_build_is_not_offered(tmp_path: Path) -> None:
    package = write(tmp_path / "part")
    values = json.loads((package / abi.PROVENANCE_FILE).read_text("utf-8"))
    values.update(library=None, libraries=[])
    (package / abi.PROVENANCE_FILE).write_text(json.dumps(values), "utf-8")
    client = TestClient(Starlette(routes=folder_routes(None, package)))
    assert client.get("/models.json").json() == {"models": []}


def test_what_is_not_for_browsers_is_not_offered(tmp_path: Path) -> None:
    package = write(tmp_path / "native")
    values = json.loads((package / abi.PROVENANCE_FILE).read_text("utf-8"))
    values["libraries"][0]["target"] = "cpu"
    (package / abi.PROVENANCE_FILE).write_text(json.dumps(values), "utf-8")
    assert offered(package, None)["size"] == 1050, "of the library that a browser fetches"
    values["libraries"][1]["target"] = "cpu"
    (package / abi.PROVENANCE_FILE).write_text(json.dumps(values), "utf-8")
    client = TestClient(Starlette(routes=folder_routes(None, package)))
    assert client.get("/models.json").json() == {"models": []}


def test_what_embeds_texts_is_not_offered_for_chats(tmp_path: Path) -> None:
    package = write(tmp_path / "embedder", embedding={"dimensions": 768})
    client = TestClient(Starlette(routes=folder_routes(None, package)))
    assert client.get("/models.json").json() == {"models": []}


def test_it_takes_the_place_of_the_page_s_own_list(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<!doctype html>", "utf-8")
    (page / "models.json").write_text('{"models": []}', "utf-8")
    assert offered(write(tmp_path / "e2b"), page)["name"] == "e2b"


def test_names_of_several_packages_are_none_that_the_page_refuses(tmp_path: Path) -> None:
    names = ["x" * 100, "x" * 99, "a/b  c", "a/b c", "\u200b", "..", "../../etc", "\U0001f41f" * 90]
    packages = {name: write(tmp_path / str(at)) for at, name in enumerate(names)}
    client = TestClient(Starlette(routes=folders_routes(None, packages)))
    models = client.get("/models.json").json()["models"]
    assert [model["name"] for model in models] == [
        *("x" * 80, "x" * 76 + " (2)", "a/b c", "a/b c (2)", "model", "..", "../../etc"),
        "\U0001f41f" * 40,
    ]
    places = [model["address"] for model in models]
    assert len({*places}) == len(places)
    assert all(client.get(f"{place}provenance.json").status_code == 200 for place in places)

"""Packages of a hub on this machine: what is fetched, checked, kept and refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, CheckpointError
from gemma4_compile.runtime.package.hub_package import fetch_package
from gemma4_compile.runtime.package.hub_snapshot import (
    forgetting_damage,
    hub_package_of,
    needed_files,
)
from gemma4_compile.runtime.package.integrity import DamagedFileError
from tests.fake_hub import COMMIT
from tests.hub_server import MODEL, HubServer, serve

WEIGHTS = bytes(range(256)) * 64
FILES = {
    "model.so": b"a library",
    "mlc-chat-config.json": b"{}",
    "params_shard_0.bin": WEIGHTS,
    "drafter-tensor-cache.json": b"{ }",
    "params_shard_drafter_0.bin": WEIGHTS[::-1],
}
NEWER = "fedcba9876543210fedcba9876543210fedcba98"
ALL = partial(needed_files, drafter=True)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def provenance(**sizes: int) -> bytes:
    listed = {
        name: {"nbytes": sizes.get(name, len(content)), "sha256": sha256(content)}
        for name, content in FILES.items()
    }
    values = {
        "schema": "gemma4_compile.package",
        "schema_version": 1,
        "library": "model.so",
        "build": {"target": "cpu", "drafter": {}},
        "files": listed,
    }
    return json.dumps(values).encode()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    files: dict[str, bytes | int] = {
        **FILES,
        abi.PROVENANCE_FILE: provenance(),
        "unlisted.bin": 1 << 40,
    }
    with serve(files) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def asked_for(hub: HubServer, name: str) -> int:
    return sum(each.startswith("GET ") and each.endswith(f"/{name}") for each in hub.asked)


def test_a_package_is_fetched_once_and_is_there_without_a_network(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[int, int]] = []
    found = fetch_package(MODEL, None, ALL, lambda *count: counted.append(count))
    assert found.commit == COMMIT
    assert names(found.directory) == {*FILES, abi.PROVENANCE_FILE}
    assert all((found.directory / name).read_bytes() == FILES[name] for name in FILES)
    total = sum(map(len, FILES.values()))
    assert counted[0] == (0, total)
    assert counted[-1] == (total, total)
    assert hub_package_of(found.directory) == found
    sent = hub.sent
    assert fetch_package(MODEL, None, ALL) == found
    assert hub.sent == sent  # the branch alone was asked about
    asked = len(hub.asked)
    assert fetch_package(MODEL, COMMIT, ALL) == found
    offline(monkeypatch)
    assert fetch_package(MODEL, None, ALL) == found
    assert len(hub.asked) == asked


def test_the_drafter_is_fetched_where_it_is_wanted(hub: HubServer) -> None:
    found = fetch_package(MODEL, None, partial(needed_files, drafter=False))
    of_drafter = {"drafter-tensor-cache.json", "params_shard_drafter_0.bin"}
    assert names(found.directory) == {*FILES, abi.PROVENANCE_FILE} - of_drafter
    assert of_drafter <= names(fetch_package(MODEL, None, ALL).directory)
    assert asked_for(hub, "params_shard_0.bin") == 1


def test_a_download_that_is_cut_off_goes_on(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 64)  # a part of one is not kept
    hub.drops = 2
    for _ in range(5):
        with contextlib.suppress(CheckpointError):
            found = fetch_package(MODEL, None, ALL)
            break
    assert (found.directory / "params_shard_0.bin").read_bytes() == WEIGHTS
    whole = sum(map(len, FILES.values())) + len(provenance())
    assert whole <= hub.sent < whole + 3 * 64


@pytest.mark.parametrize("name", ["model.so", "params_shard_0.bin"])
def test_what_came_damaged_does_not_stay(hub: HubServer, name: str) -> None:
    hub.files[name] = FILES[name][:-1] + b"!"
    with pytest.raises(ArtifactError, match=rf"`{name}` of `{MODEL}` came damaged") as caught:
        fetch_package(MODEL, None, ALL)
    assert "run the same command again" in str(caught.value.hint)
    hub.files[name] = FILES[name]
    found = fetch_package(MODEL, None, ALL)
    assert (found.directory / name).read_bytes() == FILES[name]


@pytest.mark.parametrize("field", ["sizes", "hashes"])
def test_a_file_that_is_another_is_not_downloaded(hub: HubServer, field: str) -> None:
    setattr(hub, field, {"model.so": 7} if field == "sizes" else {"model.so": "ab" * 32})
    with pytest.raises(ArtifactError, match=r"`model.so` of .* is another file"):
        fetch_package(MODEL, None, ALL)
    assert asked_for(hub, "params_shard_0.bin") == asked_for(hub, "model.so") == 0


def test_a_file_that_is_not_uploaded_yet_is_named(hub: HubServer) -> None:
    del hub.files["model.so"]
    with pytest.raises(ArtifactError, match=r"has no `model.so`, which its `provenance.json`"):
        fetch_package(MODEL, None, ALL)
    assert asked_for(hub, "params_shard_0.bin") == 0


@pytest.mark.parametrize(
    "sizes",
    [
        {"params_shard_0.bin": 1 << 40},
        {"params_shard_0.bin": -1},
        {"mlc-chat-config.json": 1 << 30},
        {"model.so": 1 << 31},
        {"params_shard_drafter_0.bin": 1 << 38},
    ],
)
def test_sizes_have_bounds_before_anything_is_fetched(
    hub: HubServer, sizes: dict[str, int]
) -> None:
    hub.files[abi.PROVENANCE_FILE] = content = provenance(**sizes)
    with pytest.raises(ArtifactError, match=r"expected at most|lists too much"):
        fetch_package(MODEL, None, ALL)
    assert hub.sent == len(content)


def test_no_byte_of_a_huge_provenance_is_read(hub: HubServer) -> None:
    hub.files[abi.PROVENANCE_FILE] = 1 << 40
    with pytest.raises(ArtifactError, match=r"`provenance.json` of `someone/model`: expected at"):
        fetch_package(MODEL, None, ALL)
    assert hub.sent == 0


@pytest.mark.parametrize("name", ["../up.bin", "folder/model.so", "/etc/passwd", ".hidden"])
def test_names_are_plain(hub: HubServer, name: str) -> None:
    values = json.loads(provenance())
    values["files"][name] = values["files"]["model.so"]
    hub.files[abi.PROVENANCE_FILE] = json.dumps(values).encode()
    with pytest.raises(ArtifactError, match="field `files` is damaged"):
        fetch_package(MODEL, None, ALL)
    assert asked_for(hub, "params_shard_0.bin") == 0


def test_space_is_looked_at_first(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=len(WEIGHTS)))
    with pytest.raises(ArtifactError, match=f"found {len(WEIGHTS)} free") as caught:
        fetch_package(MODEL, None, ALL)
    assert "HF_HOME" in str(caught.value.hint)
    assert asked_for(hub, "model.so") == 0


@pytest.mark.parametrize(
    ("file", "what", "way"),
    [
        ("config.json", "is a checkpoint, not a package", f"gemma4-compile {MODEL} --target"),
        ("adapter_config.json", "is an adapter", f"--adapter {MODEL}"),
        ("model-q4_0.gguf", "has GGUF files", "compile the original checkpoint"),
        ("README.md", "has no `provenance.json`", "gemma4-compile made"),
    ],
)
def test_what_is_no_package_is_told(hub: HubServer, file: str, what: str, way: str) -> None:
    hub.files = {file: b"{}", "model.safetensors": 1 << 40}
    with pytest.raises(ArtifactError, match=what) as caught:
        fetch_package(MODEL, None, ALL)
    assert way in str(caught.value.hint)
    assert hub.sent == 0


@pytest.mark.parametrize(
    ("target", "pages", "way"),
    [
        ("webgpu", False, f"gemma4-serve {MODEL}@v1 runs it in a browser"),
        ("metal", True, "gemma4-compile MODEL --target cpu"),
        (None, True, "give another"),
    ],
)
def test_a_package_for_other_machines_is_not_downloaded(
    hub: HubServer, target: str | None, pages: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = json.loads(provenance())
    values["build"]["target"] = target
    values["library"] = None if target is None else "model.so"
    hub.files[abi.PROVENANCE_FILE] = content = json.dumps(values).encode()
    wanted = partial(needed_files, drafter=True, pages=pages, system="linux")
    for _ in range(2):
        with pytest.raises(ArtifactError, match=rf"`{MODEL}` on the hub has no library") as caught:
            fetch_package(MODEL, "v1", wanted)
        assert way in str(caught.value.hint)
        assert hub.sent == len(content)
        offline(monkeypatch)


def test_packages_in_folders_are_named(hub: HubServer) -> None:
    hub.files = {f"{folder}/{abi.PROVENANCE_FILE}": provenance() for folder in ("web q4", "cpu")}
    with pytest.raises(ArtifactError, match="has packages in folders: cpu, web q4") as caught:
        fetch_package(MODEL, "v1", ALL)
    way = f"hf download {MODEL} --revision v1 --include 'cpu/*' --local-dir DIR"
    assert way in str(caught.value.hint)
    assert hub.sent == 0


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_a_hub_that_serves_nothing_says_why_and_the_cache_does(
    hub: HubServer, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refusal = status, "no right for hf_secret"
    if status != 503:  # which huggingface_hub asks again for half a minute
        with pytest.raises(CheckpointError) as caught:
            fetch_package(MODEL, None, ALL)
        assert "hf_secret" not in f"{caught.value}{caught.value.hint}"
    hub.refusal = None
    found = fetch_package(MODEL, None, ALL)
    hub.refusal = status, "no right for hf_secret"
    assert fetch_package(MODEL, None, ALL) == found
    said = capsys.readouterr().err
    assert f"(it answered {status})" in said
    assert COMMIT in said
    assert "hf_secret" not in said


def test_a_cache_without_the_package_says_so_offline(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(monkeypatch)
    with pytest.raises(CheckpointError, match="not in the local cache, or not whole"):
        fetch_package(MODEL, None, ALL)
    assert not hub.asked


def test_a_branch_that_moved_serves_its_last_whole_commit_offline(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fetch_package(MODEL, None, ALL)
    hub.commit, hub.sizes = NEWER, {"model.so": 1}
    with pytest.raises(ArtifactError, match="is another file"):
        fetch_package(MODEL, None, ALL)
    offline(monkeypatch)
    assert fetch_package(MODEL, None, ALL) == first
    assert f"commit {COMMIT}" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="not whole"):
        fetch_package(MODEL, NEWER, ALL)


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(hub: HubServer) -> None:
    found = fetch_package(MODEL, None, ALL)
    weights = found.directory / "params_shard_0.bin"
    with (
        pytest.raises(ArtifactError, match="removed from the cache"),
        forgetting_damage(found.directory),
    ):
        raise DamagedFileError("damaged", file=weights.name)
    assert not weights.exists()
    weights = fetch_package(MODEL, None, ALL).directory / weights.name
    weights.resolve().write_bytes(b"short")
    fetch_package(MODEL, None, ALL)
    assert weights.read_bytes() == WEIGHTS
    assert asked_for(hub, weights.name) == 3

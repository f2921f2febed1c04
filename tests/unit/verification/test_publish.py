"""Uploads to a hub on this machine: one commit, what goes with it, and what is refused before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.cli.compile import main
from gemma4_compile.errors import ArtifactError, CheckpointError, UsageError
from gemma4_compile.runtime.package.hub_package import fetch_package
from gemma4_compile.verification.model_card import LICENCE_FILE, MARK, PICTURE
from gemma4_compile.verification.publish import PublishRequest, publish
from tests.hub_server import MODEL, HubServer, serve
from tests.packages import Silent

FILES = {
    "model.so": b"a library",
    "tensor-cache.json": b"{}",
    "tokenizer.json": b"{ }",
    "params_shard_0.bin": bytes(range(256)) * 16,
    "params_shard_1.bin": bytes(range(255)) * 16,
}


def write_package(folder: Path, **source: object) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    listed = {
        name: {"nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in FILES.items()
    }
    values = {
        "schema": "gemma4_compile.package",
        "schema_version": 1,
        "library": "model.so",
        "build": {
            "target": "cpu",
            "recipe": "q4f16",
            "source": source or {"kind": "tiny"},
            "memory": {"decoder": 1 << 30, "kv": 1 << 20},
        },
        "files": listed,
    }
    (folder / abi.PROVENANCE_FILE).write_text(json.dumps(values), "utf-8")
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(tmp_path / "package")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve({}) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


def upload(package: Path, **options: object) -> str:
    return publish(PublishRequest(package, MODEL, **options), Silent())  # type: ignore[arg-type]


def is_private(hub: HubServer) -> bool:
    """Whether a private repository was asked for, as older or newer hubs are asked."""
    (asked,) = hub.created
    return asked.get("visibility", "private" if asked.get("private") else "public") == "private"


def puts(hub: HubServer) -> int:
    return sum(each.startswith("PUT ") for each in hub.asked)


def test_what_is_published_is_what_is_fetched(package: Path, hub: HubServer) -> None:
    assert upload(package).startswith(hub.address)
    assert is_private(hub)
    ((added, gone),) = hub.commits
    assert sorted(added) == sorted(
        (*FILES, abi.PROVENANCE_FILE, "README.md", LICENCE_FILE, PICTURE)
    )
    assert gone == []
    found = fetch_package(MODEL, None, lambda provenance: provenance.files)
    assert {name: (found.directory / name).read_bytes() for name in FILES} == FILES
    card, licence = hub.files["README.md"], hub.files[LICENCE_FILE]
    assert isinstance(card, bytes)
    assert MARK.encode() in card
    assert f"]({PICTURE})".encode() in card
    assert b"layers of the text decoder" in bytes(str(hub.files[PICTURE]), "utf-8")
    assert isinstance(licence, bytes)
    assert b"Version 2.0, January 2004" in licence


def test_a_repository_for_everybody_is_asked_for(package: Path, hub: HubServer) -> None:
    upload(package, public=True)
    assert not is_private(hub)


def test_an_interrupted_upload_goes_on_and_nothing_is_there_before(
    package: Path, hub: HubServer
) -> None:
    hub.failures = 1
    with pytest.raises(CheckpointError, match="uploading `someone/model` failed") as caught:
        upload(package)
    assert "run the same command again" in str(caught.value.hint)
    assert not hub.files
    stored = len(hub.stored)
    before = puts(hub)
    upload(package)
    assert puts(hub) - before == 3 - stored
    assert set(FILES) < set(hub.files)


def test_a_newer_package_takes_the_place_of_the_older_and_of_nothing_else(
    package: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(package)
    hub.files["picture.png"], hub.files["README.md"] = b"mine", b"my own words"
    smaller = {name: FILES[name] for name in FILES if name != "params_shard_1.bin"}
    monkeypatch.setitem(globals(), "FILES", smaller)
    upload(write_package(package))
    assert hub.commits[-1][1] == ["params_shard_1.bin"]
    assert hub.files["picture.png"] == b"mine"
    assert hub.files["README.md"] == b"my own words"


def test_somebodys_own_picture_stays(package: Path, hub: HubServer) -> None:
    hub.files[PICTURE] = b"mine"
    upload(package)
    assert hub.files[PICTURE] == b"mine"
    card = hub.files["README.md"]
    assert isinstance(card, bytes)
    assert PICTURE.encode() not in card
    hub.files.pop(PICTURE)
    upload(package)
    assert hub.files[PICTURE] != b"mine"
    assert f"]({PICTURE})" in str(hub.files["README.md"])


def test_two_who_publish_at_a_time_are_not_mixed(package: Path, hub: HubServer) -> None:
    hub.elsewhere = "e" * 40
    with pytest.raises(CheckpointError, match="somebody else has changed `someone/model`"):
        upload(package)
    assert not hub.files
    upload(package)  # on what is there now
    assert set(FILES) < set(hub.files)


@pytest.mark.parametrize("name", ["tokenizer.json", ".gitignore"])
def test_a_repository_of_something_else_is_left_alone(
    package: Path, hub: HubServer, name: str
) -> None:
    hub.files = {name: b"of a checkpoint"}
    with pytest.raises(ArtifactError, match=name) as caught:
        upload(package)
    assert "nothing was uploaded" in str(caught.value.hint)
    assert hub.files == {name: b"of a checkpoint"}
    assert puts(hub) == 0


def test_a_damaged_package_is_not_uploaded(package: Path, hub: HubServer) -> None:
    (package / "params_shard_0.bin").write_bytes(b"\0" * 4096)
    with pytest.raises(ArtifactError, match=r"`params_shard_0.bin` of .* is damaged"):
        upload(package)
    assert not hub.asked


def test_pieces_of_other_bytes_than_the_whole_are_not_uploaded(
    package: Path, hub: HubServer
) -> None:
    path, name = package / abi.PROVENANCE_FILE, "params_shard_0.bin"
    content = bytes(range(256)) * (5 << 10)  # 1.25 MiB
    (package / name).write_bytes(content)
    digests = [hashlib.sha256(content[at : at + (1 << 20)]).hexdigest() for at in (0, 1 << 20)]
    values = json.loads(path.read_text())

    def listed(pieces: list[str]) -> None:
        whole = {"nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        values["files"][name] = {**whole, "pieces": {"nbytes": 1 << 20, "sha256": pieces}}
        path.write_text(json.dumps(values))

    listed([digests[0], digests[0]])
    with pytest.raises(ArtifactError, match="hashes of its pieces"):
        upload(package)
    assert not hub.files
    listed(digests)
    upload(package)
    assert hub.files[name] == content


def test_weights_without_a_licence_are_not_uploaded(tmp_path: Path, hub: HubServer) -> None:
    package = write_package(tmp_path / "other", kind="directory")
    with pytest.raises(UsageError, match="no weights are published without their licence"):
        upload(package)
    assert not hub.asked
    (tmp_path / "terms.txt").write_text("Do no harm.", "utf-8")
    upload(package, licence_file=tmp_path / "terms.txt")
    assert hub.files[LICENCE_FILE] == b"Do no harm."


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_without_rights_is_told_and_not_shown(
    package: Path, hub: HubServer, status: int
) -> None:
    hub.refusal = status, "no right for hf_secret"
    with pytest.raises(CheckpointError, match="token that is set") as caught:
        upload(package)
    assert "hf_secret" not in f"{caught.value}{caught.value.hint}"


def test_the_command_uploads_a_finished_package(
    package: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--publish", MODEL, "--from", str(package)]) == 0
    assert f"{hub.address}/{MODEL}/commit/" in capsys.readouterr().out


def test_a_licence_is_missed_before_anything_is_compiled(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    given = [str(tmp_path / "model"), "-o", str(tmp_path / "out"), "--publish", MODEL]
    assert main(given) == 2
    assert "--license-file" in capsys.readouterr().err
    assert not hub.asked

"""A package opened for verification, and its twin with probes; no library is compiled here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError, CheckpointError
from gemma4_compile.media.settings import ImageSettings, MediaSettings
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.files import write_json
from gemma4_compile.progress import ByteProgress
from gemma4_compile.verification import subject
from gemma4_compile.verification.subject import (
    Subject,
    VerifyRequest,
    make_probe,
    modalities_of,
    open_subject,
)
from tests import models
from tests.packages import Silent, compile_small, list_files

CONTEXT = 64
LIBRARY = "model.so"


class Counting(Silent):
    """A reporter that remembers what it is told."""

    def __init__(self) -> None:
        self.total = 0
        self.counts: list[int] = []

    @contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        self.total = total_bytes
        yield self.counts.append


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and its package, whose library is none."""
    folder = tmp_path_factory.mktemp("made")
    model = models.write_checkpoint(folder / "model", models.E2B_LIKE, dtype="bfloat16").path
    package = folder / "package"
    request = CompileRequest(
        str(model), "cpu", "q8f16", package, context_length=CONTEXT, only="weights"
    )
    compile_small(request)
    (package / LIBRARY).write_bytes(b"library")
    list_files(package, LIBRARY)
    return model, package


@pytest.fixture
def request_for(made: tuple[Path, Path], tmp_path: Path) -> VerifyRequest:
    model, package = made
    shutil.copytree(package, tmp_path / "package")
    return VerifyRequest(tmp_path / "package", str(model))


def opened(request: VerifyRequest, reporter: Silent | None = None) -> Subject:
    checkpoint = Checkpoint.open(Path(request.reference))
    config = Gemma4Config.from_dict(checkpoint.config)
    return open_subject(request, checkpoint, config, reporter or Silent())


def change_build(package: Path, **values: Any) -> None:
    path = package / abi.PROVENANCE_FILE
    content = read_artifact(path)
    content["build"].update(values)
    write_json(path, content)


def test_a_package_is_opened_with_its_checkpoint(request_for: VerifyRequest) -> None:
    found = opened(request_for)
    assert found.context == CONTEXT
    assert found.provenance.library == LIBRARY
    weights = models.random_weights(models.E2B_LIKE, dtype="bfloat16")
    assert found.shapes == {name: values.shape for name, values in weights.items()}
    name = "layers.1.mlp.up_proj.weight"
    np.testing.assert_array_equal(found.read(name, 2, 5), weights[name][2:5])
    stored = found.stored.read(name, 2, 5)
    np.testing.assert_allclose(stored, weights[name][2:5], atol=np.abs(weights[name]).max() / 100)
    assert not np.array_equal(stored, weights[name][2:5]), "8 bits round"


def test_every_byte_is_hashed_and_reported_once(request_for: VerifyRequest) -> None:
    reporter = Counting()
    found = opened(request_for, reporter)
    total = sum(nbytes for nbytes, _ in found.provenance.files.values())
    assert reporter.total == sum(reporter.counts) == total
    assert reporter.counts[0] == 0, "nothing was done before"


def test_a_damaged_file_is_found(request_for: VerifyRequest) -> None:
    (request_for.package / LIBRARY).write_bytes(b"Library")
    with pytest.raises(ArtifactError, match="damaged"):
        opened(request_for)


def test_a_library_of_another_device_may_be_missing_and_not_another_file(
    request_for: VerifyRequest,
) -> None:
    other = request_for.package / "model-other.so"
    other.write_bytes(b"other")
    list_files(request_for.package)
    path = request_for.package / abi.PROVENANCE_FILE
    found = Provenance.from_json(read_artifact(path))
    second = replace(found.libraries[0], name="other", file=other.name)
    write_json(path, replace(found, libraries=(*found.libraries, second)).to_json())
    other.write_bytes(b"other and more")
    with pytest.raises(ArtifactError, match=r"model-other\.so"):
        opened(request_for)
    other.unlink()
    assert [one.name for one in opened(request_for).provenance.libraries][1:] == ["other"]
    (request_for.package / LIBRARY).unlink()
    with pytest.raises(ArtifactError, match=LIBRARY):
        opened(request_for)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", None),
        ("target", ["cpu"]),
        ("context_length", "64"),
        ("suppressed_tokens", None),
        ("modalities", "text"),
        ("modalities", [["text"]]),
        ("overrides", ["embed_tokens"]),
        ("drafter", {}),
        ("drafter", "tiny"),
    ],
)
def test_a_damaged_field_of_the_build_is_named(
    field: str, value: object, request_for: VerifyRequest
) -> None:
    change_build(request_for.package, **{field: value})
    with pytest.raises(ArtifactError, match=f"field `{field}` is damaged"):
        opened(request_for)


def test_a_partial_build_is_refused(request_for: VerifyRequest) -> None:
    (request_for.package / LIBRARY).unlink()
    path = request_for.package / abi.PROVENANCE_FILE
    values = json.loads(path.read_text())
    values["library"] = None
    path.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="partial build, without library"):
        opened(request_for)


def test_another_checkpoint_s_package_is_refused(
    request_for: VerifyRequest, tmp_path: Path
) -> None:
    other = models.write_checkpoint(tmp_path / "other", models.E4B_LIKE).path
    with pytest.raises(CheckpointError, match=r"from another config\.json") as caught:
        opened(replace(request_for, reference=str(other)))
    assert caught.value.hint


def test_weights_that_are_not_finite_are_read_as_the_package_has_them(
    request_for: VerifyRequest, tmp_path: Path
) -> None:
    name = "layers.0.mlp.up_proj.weight"
    weights = dict(models.random_weights(models.E2B_LIKE, dtype="bfloat16"))
    weights[name] = weights[name].copy()
    weights[name][1, 2:4] = np.nan, np.inf
    spoilt = models.write_checkpoint(
        tmp_path / "spoilt", models.E2B_LIKE, dtype="bfloat16", weights=weights
    ).path
    request = replace(request_for, reference=str(spoilt))
    assert np.isnan(opened(request).read(name, 1, 2)[0, 2])
    change_build(request.package, nonfinite_weights={name: 2})
    row = opened(request).read(name, 1, 2)[0]
    assert list(row[2:4]) == [0, 0]
    np.testing.assert_array_equal(row[4:], weights[name][1, 4:])


def test_packages_of_earlier_versions_take_text() -> None:
    assert modalities_of({}) == {Modality.TEXT}
    assert modalities_of({"modalities": ["text", "image"]}) == {Modality.TEXT, Modality.IMAGE}


def test_a_probe_is_the_same_package_with_another_library(
    request_for: VerifyRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CompileRequest] = []
    package, found = request_for.package, opened(request_for)
    build = {
        "context_length": CONTEXT,
        "activations": "int8",
        "overrides": [["embed_tokens", "q8f16_1"], ["drafter.*", "q8f16_1"]],
        "modalities": ["text", "image"],
        "media": MediaSettings(
            ImageSettings(1, 2, 3, 4, max_budget=560, client_across=16, client_down=16)
        ).to_json(),
    }
    change_build(package, **build)

    def compile_one(request: CompileRequest, reporter: object) -> None:
        del reporter
        asked.append(request)
        request.output.mkdir()
        (request.output / "probe.so").write_bytes(b"probe")
        (request.output / abi.CHAT_CONFIG_FILE).write_bytes(b"{}")
        files = {"probe.so": (5, "hash"), abi.CHAT_CONFIG_FILE: (2, "other")}
        made = Provenance("probe.so", {}, files)
        write_json(request.output / abi.PROVENANCE_FILE, made.to_json())

    monkeypatch.setattr(subject, "compile_model", compile_one)
    provenance = Provenance.from_json(read_artifact(package / abi.PROVENANCE_FILE))
    probe = make_probe(request_for, replace(found, provenance=provenance), tmp_path, Silent())

    (request,) = asked
    assert (request.model, request.only, request.probe) == (request_for.reference, "library", True)
    assert (request.target, request.quant, request.limits) == ("cpu", "q8f16", "default")
    assert (request.context_length, request.activations) == (CONTEXT, "int8")
    assert request.prefill_chunk == provenance.build["prefill_chunk"]
    assert request.overrides == (("embed_tokens", "q8f16_1"),), "a probe has no drafter"
    assert request.modalities == frozenset({Modality.TEXT, Modality.IMAGE})
    assert (request.image_tokens, request.image_shape) == (560, "square")

    listed = Provenance.from_json(read_artifact(probe / abi.PROVENANCE_FILE))
    assert listed.library == "probe.so"
    assert listed.build == provenance.build
    assert set(listed.files) == {*provenance.files, "probe.so"} - {LIBRARY}
    assert listed.files[abi.CHAT_CONFIG_FILE] == (2, "other"), "what comes with a library"
    shards = [name for name in listed.files if name.startswith("params_shard")]
    assert shards
    for name in shards:
        assert (probe / name).samefile(package / name)
        assert listed.files[name] == provenance.files[name]
    assert not (probe / LIBRARY).exists()

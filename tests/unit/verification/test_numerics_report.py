"""Numerics reports: what passes, what fails, and what an error leaves behind."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError, CheckpointError, UsageError
from gemma4_compile.options.verify import TEXTS
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.files import hash_file, write_json
from gemma4_compile.verification import numerics_report, subject
from gemma4_compile.verification.numerics_report import verify_package
from gemma4_compile.verification.subject import VerifyRequest
from tests import models
from tests.packages import Silent, compile_small

pytestmark = [pytest.mark.parity, pytest.mark.package]

CONTEXT = 64
STEPS = 8


def compile_one(model: Path, output: Path, recipe: str = "q8f16", **options: Any) -> Path:
    request = CompileRequest(str(model), "cpu", recipe, output, context_length=CONTEXT, **options)
    compile_small(request)
    return output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of E2B's kind and its package, for tests to copy."""
    folder = tmp_path_factory.mktemp("made")
    model = models.write_checkpoint(folder / "model", models.E2B_LIKE, dtype="bfloat16").path
    return model, compile_one(model, folder / "package")


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the only compiled probe lies: all tests here verify the same library."""
    return tmp_path_factory.mktemp("probes") / "probe"


@pytest.fixture
def request_for(
    made: tuple[Path, Path], probes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> VerifyRequest:
    def compile_once(request: CompileRequest, reporter: Silent) -> None:
        assert request.probe
        if not probes.exists():
            compile_small(replace(request, output=probes), reporter)
        shutil.copytree(probes, request.output)

    monkeypatch.setattr(subject, "compile_model", compile_once)
    model, package = made
    shutil.copytree(package, tmp_path / "package")
    return VerifyRequest(tmp_path / "package", str(model), steps=STEPS, texts=())


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def note_hash(package: Path, name: str) -> None:
    """Make the provenance agree with a file that a test has changed."""
    path = package / abi.PROVENANCE_FILE
    values = read_artifact(path)
    file = package / name
    values["files"][name] = {"nbytes": file.stat().st_size, "sha256": hash_file(file).sha256}
    write_json(path, values)


def test_a_good_package_gets_its_report(request_for: VerifyRequest) -> None:
    before = files(request_for.package)
    with_texts = replace(request_for, texts=TEXTS)
    found = verify_package(with_texts, Silent())
    assert found.passed, found.failures
    after = files(request_for.package)
    assert set(after) == {*before, *abi.NUMERICS_FILES}
    changed = {abi.PROVENANCE_FILE}
    assert all(after[name] == data for name, data in before.items() if name not in changed)
    provenance = Provenance.from_json(read_artifact(request_for.package / abi.PROVENANCE_FILE))
    for name, (nbytes, sha256) in provenance.files.items():
        path = request_for.package / name
        assert (path.stat().st_size, hash_file(path).sha256) == (nbytes, sha256)
    assert set(provenance.files) == set(after) - {abi.PROVENANCE_FILE}

    content = json.loads(after[abi.NUMERICS_FILE])
    assert content == json.loads(json.dumps(found.to_json()))
    assert content["text"]["longer_than_two_windows"]
    assert content["text"]["long_prompt"] > 2 * models.E2B_LIKE["sliding_window"]
    layers = len(models.E2B_LIKE["layer_types"])
    assert len(content["arithmetic"]["layers"]) == len(content["whole"]["layers"]) == layers
    # What 8 bits round away is seen against the checkpoint only.
    assert content["arithmetic"]["logits"]["kl_mean"] < content["whole"]["logits"]["kl_mean"] / 10
    assert b"<svg" in after[abi.NUMERICS_PICTURE]
    assert content["schema_version"] == 2
    assert list(content["texts"]) == list(TEXTS)
    for text in content["texts"].values():
        assert text["tokens"] == text["stored"]["positions"] == CONTEXT
        assert text["arithmetic"]["positions"] == STEPS + 1
        # The library next to the checkpoint is what its weights are, and a little arithmetic.
        assert text["arithmetic"]["kl_mean"] < text["stored"]["kl_mean"] / 10
    stored = sum(path.stat().st_size for path in request_for.package.glob("params_shard_*.bin"))
    assert 0 <= stored - content["package"]["weights_bytes"] < 1024, "shards are aligned"
    assert 8 < content["package"]["bits_per_weight"] < 12

    verify_package(with_texts, Silent())  # and again: the same bytes
    assert files(request_for.package) == after
    verify_package(request_for, Silent())
    assert read_artifact(request_for.package / abi.NUMERICS_FILE)["texts"] == {}


@pytest.mark.slow
def test_weights_that_are_not_finite_are_zeros_in_the_reference_too(
    request_for: VerifyRequest, tmp_path: Path
) -> None:
    name = "layers.0.mlp.up_proj.weight"
    weights = models.random_weights(models.E2B_LIKE)
    weights[name] = weights[name].copy()
    weights[name][1, 2:4] = np.nan, np.inf
    folder = tmp_path / "spoilt"
    model = models.write_checkpoint(folder, models.E2B_LIKE, dtype="bfloat16", weights=weights).path
    package = compile_one(model, tmp_path / "allowed", allow_nonfinite=True)
    asked = replace(request_for, package=package, reference=str(model))
    found = verify_package(asked, Silent())
    assert found.passed, found.failures
    assert found.to_json()["reference"]["nonfinite_weights"] == {name: 2}


@pytest.mark.slow
def test_a_library_of_another_model_fails(
    made: tuple[Path, Path], request_for: VerifyRequest, tmp_path: Path
) -> None:
    wrong = {**models.E2B_LIKE, "sliding_window": models.E2B_LIKE["sliding_window"] + 1}
    model = models.write_checkpoint(tmp_path / "wrong", wrong, dtype="bfloat16").path
    other = compile_one(model, tmp_path / "other", only="library")
    shutil.copyfile(other / "model.so", request_for.package / "model.so")
    note_hash(request_for.package, "model.so")
    (request_for.package / "notes.txt").write_text("of the user")
    found = verify_package(request_for, Silent())
    assert (request_for.package / "notes.txt").read_text() == "of the user"
    assert not found.passed
    assert [text for text in found.failures if text.startswith("arithmetic: mean KL")]
    assert [text for text in found.failures if text.startswith("the library against its twin")]
    assert not read_artifact(request_for.package / abi.NUMERICS_FILE)["passed"]


def test_weights_of_another_model_fail_against_the_checkpoint_only(
    request_for: VerifyRequest,
) -> None:
    shard = request_for.package / "params_shard_0.bin"
    data = np.fromfile(shard, np.uint8)
    begin = len(data) // 2
    data[begin : begin + 4096] = np.random.PCG64(1).random_raw(512).view(np.uint8)
    data.tofile(shard)
    with pytest.raises(ArtifactError, match=r"params_shard_0\.bin.* is damaged: its sha256"):
        verify_package(request_for, Silent())
    note_hash(request_for.package, shard.name)
    found = verify_package(request_for, Silent())
    assert not found.arithmetic.failures
    assert found.whole.failures


def test_an_error_leaves_the_package_as_it_was(
    request_for: VerifyRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(request_for.package)

    def fail(*_: object) -> str:
        raise ArtifactError("no picture")

    monkeypatch.setattr(numerics_report, "picture", fail)
    with pytest.raises(ArtifactError, match="no picture"):
        verify_package(request_for, Silent())
    assert files(request_for.package) == before
    assert [path.name for path in request_for.package.parent.iterdir()] == ["package"]


def test_missing_torch_is_named(
    request_for: VerifyRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gemma4_compile.verification.transformer", raising=False)
    monkeypatch.delattr("gemma4_compile.verification.transformer", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="needs torch and transformers") as caught:
        verify_package(request_for, Silent())
    assert caught.value.hint == "pip install 'gemma4-compile[verify]'"


def test_missing_node_packages_are_named_before_anything_is_opened(
    request_for: VerifyRequest, tmp_path: Path
) -> None:
    path = request_for.package / abi.PROVENANCE_FILE
    values = read_artifact(path)
    values["build"]["target"] = "webgpu"
    write_json(path, values)
    wrong = replace(request_for, reference="no such model", node_modules=tmp_path)
    with pytest.raises(UsageError, match="Node"):
        verify_package(wrong, Silent())


def test_what_does_not_fit_is_refused(
    made: tuple[Path, Path], request_for: VerifyRequest, tmp_path: Path
) -> None:
    other = models.write_checkpoint(tmp_path / "other", models.DENSE_LIKE).path
    with pytest.raises(CheckpointError, match=r"compiled from another config\.json"):
        verify_package(replace(request_for, reference=str(other)), Silent())
    half = compile_one(made[0], tmp_path / "half", only="weights")
    with pytest.raises(ArtifactError, match="a partial build"):
        verify_package(replace(request_for, package=half), Silent())
    with pytest.raises(UsageError, match="--steps"):
        verify_package(replace(request_for, steps=0), Silent())
    (request_for.package / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match=r"`tokenizer\.json` is missing"):
        verify_package(request_for, Silent())


@pytest.mark.slow
def test_a_new_library_loses_the_report(
    made: tuple[Path, Path], request_for: VerifyRequest
) -> None:
    for name in abi.NUMERICS_FILES:
        (request_for.package / name).write_text("{}")
        note_hash(request_for.package, name)
    compile_one(made[0], request_for.package, only="weights")
    assert not set(abi.NUMERICS_FILES) & set(files(request_for.package))
    for name in abi.NUMERICS_FILES:
        (request_for.package / name).write_text("{}")
        note_hash(request_for.package, name)
    compile_one(made[0], request_for.package, only="library")
    assert not set(abi.NUMERICS_FILES) & set(files(request_for.package))

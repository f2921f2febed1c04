"""The numerics report of a package for the browser, through Dawn in Node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.verification.numerics_report import verify_package
from gemma4_compile.verification.runners import run_on_dawn
from gemma4_compile.verification.subject import VerifyRequest
from tests import media_checkpoints
from tests.packages import Silent, compile_small
from tests.web.compiled import DRAFTED, TINY, Compiler
from tests.web.dawn import HERE, VulkanDriver

pytestmark = [pytest.mark.dawn, pytest.mark.parity]


@pytest.mark.slow
def test_layers_and_logits_of_a_named_library(
    nine_libraries: Path,
    tmp_path: Path,
    lavapipe: VulkanDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in lavapipe.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    package = shutil.copytree(nine_libraries, tmp_path / "package")
    asked = VerifyRequest(
        *(package, TINY),
        library="f16",
        steps=16,
        node_modules=HERE / "node_modules",
        texts=("chat", "script"),
        text_tokens=80,
    )
    found = verify_package(asked, Silent())
    assert found.passed, found.failures
    assert not (package / "numerics.json").exists(), "that is of the main library"
    content = read_artifact(package / "numerics-f16.json")
    main = read_artifact(nine_libraries / "provenance.json")["libraries"][0]
    assert main["name"] == "default"
    files = read_artifact(package / "provenance.json")["files"]
    assert content["package"]["library"] == "f16"
    assert content["package"]["library_sha256"] == files["model-f16.wasm"]["sha256"]
    assert {"numerics-f16.json", "numerics-f16.svg"} < set(files)
    assert "llvmpipe" in content["package"]["device"]
    layers = content["arithmetic"]["layers"]
    assert len(layers) == 8
    # float16 rounds somewhere in every layer: a comparison with itself would be exact.
    assert all(0 < layer["relative_error"] < 0.01 for layer in layers)
    assert list(content["texts"]) == ["chat", "script"]
    assert all(text["arithmetic"]["positions"] == 17 for text in content["texts"].values())


@pytest.mark.slow
def test_guesses_and_checked_tokens_on_webgpu(
    compiled: Compiler,
    tmp_path: Path,
    lavapipe: VulkanDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in lavapipe.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    package = shutil.copytree(compiled(DRAFTED, "webgpu", "q4f16"), tmp_path / "package")
    asked = VerifyRequest(package, TINY, steps=16, node_modules=HERE / "node_modules", texts=())
    found = verify_package(asked, Silent())
    assert found.passed, found.failures
    content = read_artifact(package / "numerics.json")["drafter"]
    assert content["source"] == {"kind": "tiny"}
    drafter = content["arithmetic"]
    assert drafter["guesses"]["guesses"] > 20
    assert drafter["logits"]["positions"] > 30
    # float16 rounds: a comparison with itself would be exact.
    assert 0 < drafter["guesses"]["relative_error"] < 0.01
    assert 0 < drafter["states"]["relative_error"] < 0.01


@pytest.mark.slow
def test_subgroups_that_are_too_small_are_told(
    compiled: Compiler, lavapipe: VulkanDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lavapipe.environment(HERE).items():
        monkeypatch.setenv(name, value)
    package = compiled(TINY, "webgpu", "q4f16", limits="subgroups")
    with pytest.raises(ArtifactError, match=r"subgroups of 32 threads or more.* may have 4"):
        run_on_dawn(package, [], HERE / "node_modules")


@pytest.mark.slow
def test_pictures_and_sounds_on_webgpu(
    tmp_path: Path,
    lavapipe: VulkanDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of both towers; tests/unit/verification/test_media.py has the other kinds, on the CPU."""
    for name, value in lavapipe.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    model = media_checkpoints.write_checkpoint(tmp_path / "model", media_checkpoints.KINDS["e2b"])
    request = CompileRequest(
        *(str(model), "webgpu", "f16", tmp_path / "package"),
        context_length=128,
        prefill_chunk=128,
        modalities=None,
    )
    compile_small(request)
    asked = VerifyRequest(
        request.output, str(model), steps=4, node_modules=HERE / "node_modules", texts=()
    )
    found = verify_package(asked, Silent())
    assert found.passed, found.failures
    media = read_artifact(request.output / "numerics.json")["media"]
    for medium in (media["image"], media["audio"]):
        assert medium["shown"]["rows"] >= 50
        assert medium["decoded"] == 4
        # float16 rounds: a comparison with itself would be exact.
        assert 0 < medium["arithmetic"]["rows"]["relative_error"] < 0.01
        assert medium["arithmetic"]["logits"]["top1"] == 1

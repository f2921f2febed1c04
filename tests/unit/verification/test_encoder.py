"""gemma4-verify on an encoder's package: what passes, what is found, what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from gemma4_compile import abi
from gemma4_compile.cli import compile as compile_cli
from gemma4_compile.cli.verify import main
from gemma4_compile.errors import UsageError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime import Package
from gemma4_compile.verification.encoder import (
    VectorComparison,
    VectorMeasures,
    clear_difference,
    compare_vectors,
    encoder_texts,
    verify_encoder,
)
from gemma4_compile.verification.subject import VerifyRequest
from tests.packages import Silent
from tests.tiny_embedder import embedder_package

TEXT = "A key lies on the table.\n\nWhere is the key?\n\nTwo and two are four.\n"


@pytest.fixture
def package(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path / "package"
    shutil.copytree(embedder_package(tmp_path_factory), copy)
    (tmp_path / "text.txt").write_text(TEXT)
    return copy


def verified(package: Path, *more: str) -> int:
    text = str(package.parent / "text.txt")
    chosen = ["--text", text, "--texts", "none", "--device", "cpu"]
    return main([str(package), "--reference", "tiny-embedding", *chosen, *more])


def test_a_package_passes_and_holds_its_report(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified(package) == 0
    assert "numerics: passed" in capsys.readouterr().out
    report = json.loads((package / abi.NUMERICS_FILE).read_text())
    assert report["passed"]
    assert report["texts"]["count"] == 4
    for weights in ("arithmetic", "whole"):  # both are float32
        assert report[weights]["max_error"] < 1e-4
        assert report[weights]["swapped"] == 0
    assert report["consistency"]["neighbours_max_error"] == 0
    kept = Provenance.from_json(json.loads((package / abi.PROVENANCE_FILE).read_text()))
    assert abi.NUMERICS_FILE in kept.files
    Package.open(package)


def test_vectors_of_other_weights_fail(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gemma4_compile.verification import encoder_reference

    right = encoder_reference.embedded

    def turned(*args: object) -> object:
        return right(*args)[::-1]  # type: ignore[arg-type]

    monkeypatch.setattr(encoder_reference, "embedded", turned)
    assert verified(package) == 1
    assert "mean cosine" in capsys.readouterr().err


def test_measures_are_those_of_the_vectors() -> None:
    expected = np.eye(3, dtype=np.float32)
    close = expected + np.float32(1e-3) * np.roll(expected, 1, axis=1)
    close /= np.linalg.norm(close, axis=1, keepdims=True)
    found = compare_vectors(close, expected, clear_difference(0.999))
    assert found.cosine_min == pytest.approx(1 - 0.5e-6, abs=1e-7)
    assert found.max_error == pytest.approx(1e-3, rel=1e-3)
    assert found.swapped == 0
    assert not [*VectorComparison(found, 0.99999).failures]


def test_an_order_that_is_turned_round_is_counted() -> None:
    query, near, far = (np.array(one, np.float32) for one in ([1, 0], [0.8, 0.6], [0.6, 0.8]))
    right, wrong = np.stack([query, near, far]), np.stack([query, far, near])
    assert compare_vectors(wrong, right, 0.1).swapped > 0
    assert compare_vectors(wrong, right, 1.0).swapped == 0, "none is clear"


def test_no_number_is_a_failure() -> None:
    nan = float("nan")
    assert [*VectorComparison(VectorMeasures(nan, nan, nan, 0), 0.9).failures]


def test_texts_are_paragraphs_and_wholes() -> None:
    request = VerifyRequest(Path("package"), "reference")
    texts = encoder_texts(request)
    assert len(texts) == len(set(texts))
    assert len(texts) > 20
    assert len(encoder_texts(replace(request, texts=()))) < len(texts)


def test_libraries_of_browsers_are_refused_by_name(package: Path) -> None:
    path = package / abi.PROVENANCE_FILE
    values = json.loads(path.read_text())
    values["build"]["target"] = "webgpu"
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError, match="natively"):
        verify_encoder(VerifyRequest(package, "tiny-embedding"), Silent())


def test_what_cannot_be_verified_is_refused_before_it_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["tiny-embedding", "--target", "webgpu,cpu", "-o", str(tmp_path / "p"), "--verify"]
    assert compile_cli.main(asked) == 2
    assert "runs encoders natively" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()

"""Numerics reports of packages with drafters: what passes, what fails, what is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import CheckpointError, UsageError
from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.package.files import hash_file, write_json
from gemma4_compile.verification import numerics_report, subject
from gemma4_compile.verification.numerics_report import verify_package
from gemma4_compile.verification.report import table
from gemma4_compile.verification.rounds import DRAFTS, rounds_here
from gemma4_compile.verification.subject import VerifyRequest
from tests import drafters
from tests.drafted import CHUNK, CONTEXT, Drafted, drafted_package
from tests.marks import slow_unless
from tests.packages import Silent, compile_small
from tests.shared import made_once, shared_folder

pytestmark = [pytest.mark.parity, pytest.mark.package]

STEPS = 12


@pytest.fixture
def request_for(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[VerifyRequest, Drafted]]:
    """A copy of a kind's package; packages and their probes are compiled once."""

    def make(kind: str = "e2b", recipe: str = "f32") -> tuple[VerifyRequest, Drafted]:
        made = drafted_package(tmp_path_factory, kind, recipe)

        def compile_once(request: CompileRequest, reporter: Silent) -> None:
            assert request.probe
            assert request.drafter is None, "the residual streams are the model's"

            def compile_it(output: Path) -> None:
                compile_small(replace(request, output=output), reporter)

            folder = shared_folder(tmp_path_factory) / "drafted-probes"
            shutil.copytree(made_once(folder / f"{kind}-{recipe}", compile_it), request.output)

        monkeypatch.setattr(subject, "compile_model", compile_once)
        package = tmp_path / "package"
        shutil.copytree(made.package, package)
        request = VerifyRequest(
            *(package, str(made.target.path)),
            steps=STEPS,
            drafter=str(made.drafter.path),
            texts=(),
        )
        return request, made

    return make


def note_hash(package: Path, name: str) -> None:
    """Make the provenance agree with a file that a test has changed."""
    path, file = package / abi.PROVENANCE_FILE, package / name
    values = read_artifact(path)
    values["files"][name] = {"nbytes": file.stat().st_size, "sha256": hash_file(file).sha256}
    write_json(path, values)


def negate(package: Path, name: str) -> None:
    """Change the sign of a stored tensor of the drafter."""
    for shard in read_artifact(package / abi.DRAFTER_CACHE_FILE)["records"]:
        for record in shard["records"]:
            if record["name"] == name:
                path = package / shard["dataPath"]
                data = np.fromfile(path, np.uint8)
                part = slice(record["byteOffset"], record["byteOffset"] + record["nbytes"])
                data[part] = (-data[part].view(record["dtype"])).view(np.uint8)
                data.tofile(path)
                return note_hash(package, shard["dataPath"])
    raise AssertionError(f"no tensor {name}")


CASES = [
    ("e2b", "f32"),
    ("dense", "q8f16"),
    ("unified", "f32"),
    ("moe", "f16"),
]


@pytest.mark.parametrize(
    ("kind", "recipe"), slow_unless(lambda kind, recipe: (kind, recipe) == ("e2b", "f32"), CASES)
)
def test_a_good_package_passes(
    kind: str, recipe: str, request_for: Callable[..., tuple[VerifyRequest, Drafted]]
) -> None:
    request, _ = request_for(kind, recipe)
    found = verify_package(request, Silent())
    assert found.passed, found.failures
    content = read_artifact(request.package / abi.NUMERICS_FILE)["drafter"]
    assert content["source"]["kind"] == "directory"
    assert content["weights"]["error"] <= content["weights"]["bound"]
    for name in ("arithmetic", "whole"):
        one = content[name]
        assert one["guesses"]["guesses"] > 2 * DRAFTS
        assert one["logits"]["positions"] > one["guesses"]["guesses"], "one more in a round"
        assert one["guesses"]["kl_mean"] <= one["thresholds"]["kl_mean"]
    if recipe == "f32":
        assert content["arithmetic"]["guesses"]["kl_max"] < 1e-8
        assert content["arithmetic"]["guesses"]["candidates"] == 1
    text = table(found.to_json())
    assert f"the drafter, in {content['rounds']} rounds" in text
    assert text.count("drafts that agree") == 2
    assert read_artifact(request.package / abi.PROVENANCE_FILE)["build"]["drafter"]


def test_a_damaged_weight_of_it_is_found(
    request_for: Callable[..., tuple[VerifyRequest, Drafted]],
) -> None:
    request, _ = request_for()
    negate(request.package, "drafter.layers.1.mlp.down_proj.weight")
    found = verify_package(request, Silent())
    begins = (
        "drafter: stored rows of `model.layers.1.mlp.down_proj.weight` differ from the "
        "checkpoint's by 2,",
        "drafter, against the checkpoint: drafts: mean KL divergence is ",
    )
    for begin in begins:
        assert [text for text in found.failures if text.startswith(begin)], found.failures
    assert not [text for text in found.failures if "arithmetic" in text], "the weights are its own"
    assert not [text for text in found.failures if "checked tokens" in text], "nor the model's"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["e2b", "dense"])
def test_a_wrong_kernel_of_it_is_found(
    kind: str, request_for: Callable[..., tuple[VerifyRequest, Drafted]], tmp_path: Path
) -> None:
    request, made = request_for(kind)
    wrong = drafters.write_drafter(
        tmp_path / "wrong", kind, values=drafters.drafter_config(kind, rms_norm_eps=0.1)
    )
    options = CompileRequest(
        *(str(made.target.path), "cpu", "f32", tmp_path / "other"),
        context_length=CONTEXT,
        prefill_chunk=CHUNK,
        activations="float",
        drafter=str(wrong.path),
        only="library",
    )
    compile_small(options)
    shutil.copyfile(tmp_path / "other" / "model.so", request.package / "model.so")
    note_hash(request.package, "model.so")
    found = verify_package(request, Silent())
    begin = "drafter, arithmetic: drafts: mean KL divergence is "
    assert [text for text in found.failures if text.startswith(begin)], found.failures
    assert all(text.startswith("drafter, ") for text in found.failures), "the model is as it was"
    assert all(": drafts: " in text for text in found.failures), "and so are checked tokens"


def test_wrong_checked_tokens_are_found(
    request_for: Callable[..., tuple[VerifyRequest, Drafted]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mask would give them that lets the last row of several see too little."""

    def wrong_rows(*arguments: Any) -> Any:
        return [
            replace(one, logits=one.logits[::-1], states=one.states[::-1])
            for one in rounds_here(*arguments)
        ]

    request, _ = request_for()
    monkeypatch.setattr(numerics_report, "rounds_for", lambda *_: wrong_rows)
    found = verify_package(request, Silent())
    for name in ("mean KL divergence", "cosine of the states"):
        begin = f"drafter, arithmetic: checked tokens: {name} is "
        assert [text for text in found.failures if text.startswith(begin)], found.failures
    assert not [text for text in found.failures if ": drafts: " in text]


def test_the_drafter_that_it_was_made_with_is_asked_for(
    request_for: Callable[..., tuple[VerifyRequest, Drafted]], tmp_path: Path
) -> None:
    request, _ = request_for()
    with pytest.raises(UsageError, match="was read from a directory") as raised:
        verify_package(replace(request, drafter=None), Silent())
    assert "--drafter" in str(raised.value.hint)
    other = drafters.write_drafter(
        tmp_path / "other", "e2b", values=drafters.drafter_config("e2b", rms_norm_eps=0.1)
    )
    with pytest.raises(CheckpointError, match=r"the drafter of another config\.json"):
        verify_package(replace(request, drafter=str(other.path)), Silent())
    values = read_artifact(request.package / abi.PROVENANCE_FILE)
    del values["build"]["drafter"]
    write_json(request.package / abi.PROVENANCE_FILE, values)
    with pytest.raises(UsageError, match=r"--drafter: .* has no drafter"):
        verify_package(request, Silent())


@pytest.mark.slow
def test_schemes_of_the_drafter_alone_do_not_hinder_the_model(
    request_for: Callable[..., tuple[VerifyRequest, Drafted]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request, made = request_for("dense", "f16")
    shutil.rmtree(request.package)
    monkeypatch.undo()
    options = CompileRequest(
        *(str(made.target.path), "cpu", "f16", request.package),
        context_length=CONTEXT,
        prefill_chunk=CHUNK,
        drafter=str(made.drafter.path),
        overrides=(("drafter.*_projection", "q8f16_1"),),
    )
    compile_small(options)
    found = verify_package(request, Silent())
    assert not [text for text in found.failures if "arithmetic" in text], found.failures
    assert found.to_json()["drafter"]["weights"]["error"] > 1e-3

"""Whole calibrations of small models: what is stored, and what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.calibration.calibrate import calibrating
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import QuantizationError, UsageError
from gemma4_compile.package.partial_build import NONFINITE
from gemma4_compile.quantization.schemes import SCHEMES
from tests import models
from tests.marks import slow_unless
from tests.packages import Silent
from tests.unit.calibration.calibrated import TEXT, checkpoint, compiled, plain

pytestmark = pytest.mark.parity

from gemma4_compile.calibration import gptq, layers  # noqa: E402


@pytest.mark.parametrize(
    "kind",
    slow_unless(lambda kind: kind == "moe", list(models.KINDS)),  # e2b: its own text
)
def test_every_matrix_of_the_layers_is_chosen_and_near_its_weights(
    kind: str, tmp_path: Path
) -> None:
    made = checkpoint(tmp_path, kind)
    found = compiled(made, tmp_path)
    changed = 0
    for name, values in made.weights.items():
        if not name.startswith("layers.") or values.ndim < 2 or "router" in name:
            continue
        if "per_layer" in name:  # in 8 bits
            continue
        matrix = values.reshape(-1, values.shape[-1])
        rows = found.read(name, 0, len(matrix))
        assert np.linalg.norm(rows - matrix) < 0.35 * np.linalg.norm(matrix), name
        changed += bool((rows != plain(matrix)).any())
    assert changed >= 7
    build = json.loads((tmp_path / "out" / abi.PROVENANCE_FILE).read_text())["build"]
    entry = build["calibration"]
    assert entry["method"] == "gptq-3"
    assert entry["text"] == "given"
    assert set(entry["versions"]) == {"torch", "transformers"}
    assert not (tmp_path / ".out.calibration").exists()


def test_what_was_chosen_with_minima_is_stored_as_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not searched again: of matrices whose rows take turns, and of experts, too."""
    made, choose = checkpoint(tmp_path, "moe"), gptq.choose_codes
    found: dict[str, list[np.ndarray]] = {}

    def noted(*given: Any) -> Any:
        pair = choose(*given)
        found.setdefault(given[3], []).append(SCHEMES["q4_k"].load(pair))
        return pair

    monkeypatch.setattr(layers, "choose_codes", noted)
    package = compiled(made, tmp_path, "q4kf16")
    changed = 0
    for name, pieces in found.items():
        values = np.concatenate(pieces)
        if "experts" not in name:  # one that no position chose is not among them
            np.testing.assert_array_equal(package.read(name, 0, len(values)), values)
        else:
            count = made.weights[name].shape[1]
            whole = package.read(name, 0, count * len(made.weights[name]))
            stored = {rows.tobytes() for rows in whole.reshape(-1, count, values.shape[1])}
            assert {piece.tobytes() for piece in pieces} <= stored
        again = SCHEMES["q4_k"].store(values, name=name, first_row=0)
        changed += bool((SCHEMES["q4_k"].load(again) != values).any())
    assert {name.rpartition(".")[2] for name in found} >= {"gate_up_proj", "down_proj", "weight"}
    assert changed, "the plain search would have given others"


def test_a_recipe_without_four_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recipe `q8f16` stores no matrix of the layers in 4"):
        compiled(checkpoint(tmp_path, "dense"), tmp_path, "q8f16")


def spoilt(folder: Path, name: str) -> models.Checkpoint:
    """A model of which a row of a tensor is no numbers."""
    weights = models.random_weights(models.KINDS["e2b"])
    weights[name] = weights[name].copy()
    weights[name][3:200] = np.nan
    return models.write_checkpoint(folder / "model", models.KINDS["e2b"], weights=weights)


@pytest.mark.parametrize(
    ("name", "own", "said"),
    [
        ("layers.1.mlp.up_proj.weight", False, "`layers.1.mlp.up_proj.weight`: row 3 holds a"),
        ("embed_tokens.weight", False, "`layers.0.self_attn.q_proj.weight`: what the model"),
        ("embed_tokens.weight", True, "the head: what the model computes from the text until"),
    ],
)
def test_weights_that_are_no_numbers_are_refused(
    name: str, own: bool, said: str, tmp_path: Path
) -> None:
    made, output = spoilt(tmp_path, name), tmp_path / "out"
    (tmp_path / "text").write_text(TEXT)
    request = CompileRequest(str(made.path), "cpu", "q4f16", output, only="weights")
    with (
        pytest.raises(QuantizationError, match=said),
        calibrating(output, None if own else tmp_path / "text") as calibrator,
    ):
        compile_model(request, Silent(), replace(calibrator, steps=1))


def test_allowed_ones_are_counted_as_the_checkpoint_has_them(tmp_path: Path) -> None:
    name = "layers.1.mlp.up_proj.weight"
    made = spoilt(tmp_path, name)
    compiled(made, tmp_path, allow_nonfinite=True)
    build = json.loads((tmp_path / "out" / abi.PROVENANCE_FILE).read_text())["build"]
    assert build[NONFINITE] == {name: int(np.isnan(made.weights[name]).sum())}


def test_missing_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gemma4_compile.calibration.layers", None)
    monkeypatch.delattr("gemma4_compile.calibration.layers", raising=False)
    with pytest.raises(UsageError, match="--calibrate needs torch"), calibrating(tmp_path, None):
        pass


@pytest.mark.slow
def test_a_model_writes_its_own_text(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, "e2b")
    request = CompileRequest(str(made.path), "cpu", "q4f16", tmp_path / "out", only="weights")
    entries = []
    for name in ("out", "other"):
        with calibrating(tmp_path / name, None) as calibrator:
            asked = replace(request, output=tmp_path / name)
            compile_model(asked, Silent(), replace(calibrator, steps=3))
        text = (tmp_path / name / abi.PROVENANCE_FILE).read_text()
        entries.append(json.loads(text)["build"]["calibration"])
    assert entries[0] == entries[1]
    assert entries[0]["text"] == "own"
    assert entries[0]["seed"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny", "--calibrate", "--only", "library"], "--calibrate is of weights"),
        (["tiny", "--calibrate", "absent.txt"], "--calibrate: cannot read `absent.txt`"),
        (["--calibrate", "tiny"], "hint: MODEL goes before it: gemma4-compile tiny --calibrate -o"),
        (["--calibrate", "/"], "`/` is no text; no MODEL is given"),
        (["--calibrate", "x.gguf", "--plan"], "`x.gguf` is no text; no MODEL is given"),
    ],
)
def test_what_cannot_be_calibrated_is_said_before_anything_is_opened(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "-o", str(tmp_path / "out")]) != 0
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

"""What a recipe rounds away: figures computed by hand, planted outliers, a recipe file's effect."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import QuantizationError
from gemma4_compile.quantization.groups import GroupScheme, dequantize, quantize
from gemma4_compile.reports.quantization_report import ParameterLoss, report_model, report_text
from tests import models
from tests.packages import Silent

DOWN = "layers.0.mlp.down_proj"


def report(
    model: Path, quant: str = "q4f16", overrides: tuple[tuple[str, str], ...] = ()
) -> dict[str, ParameterLoss]:
    request = CompileRequest(str(model), "cpu", quant, Path(), overrides=overrides)
    return {loss.name: loss for loss in report_model(request, Silent())[0]}


def write(folder: Path, weights: dict[str, models.Float32Array] | None = None) -> Path:
    return models.write_checkpoint(folder / "model", models.E2B_LIKE, weights=weights).path


def test_errors_by_hand(tmp_path: Path) -> None:
    weights = models.random_weights(models.E2B_LIKE)
    found = report(write(tmp_path))[DOWN].loss
    values = weights[f"{DOWN}.weight"]
    scheme = GroupScheme(4, "float16")
    difference = dequantize(*quantize(values, scheme), scheme) - values
    expected = np.linalg.norm(difference) / np.linalg.norm(values)
    assert found.relative_error == pytest.approx(expected, rel=1e-5)
    assert found.largest_error == pytest.approx(np.abs(difference).max(), rel=1e-5)
    assert found.nbytes == values.size // 2 + values.size // 32 * 2
    assert found.scheme == "q4f16_1"


def test_exact_recipes_lose_nothing(tmp_path: Path) -> None:
    losses = report(write(tmp_path), "f32")
    assert all(loss.loss.relative_error == 0 for loss in losses.values())
    assert all(loss.loss.outlier_groups == 0 for loss in losses.values())


def test_planted_outliers_are_counted_and_named(tmp_path: Path) -> None:
    weights = models.random_weights(models.E2B_LIKE)
    name = f"{DOWN}.weight"
    weights[name] = weights[name].copy()
    weights[name][::2, 5] = 50 * np.abs(weights[name]).max()
    losses = report(write(tmp_path, weights))
    rows, cols = weights[name].shape
    assert losses[DOWN].loss.outlier_groups == pytest.approx(rows / 2 / (rows * cols / 32))
    assert losses["layers.1.mlp.down_proj"].loss.outlier_groups < 0.05
    lines = report_text(list(losses.values())).splitlines()
    first = lines[lines.index("the 20 that lose most") + 1]
    worst = max(losses.values(), key=lambda loss: loss.loss.relative_error)
    assert first.startswith(worst.name)


def test_a_recipe_file_shows_its_effect(tmp_path: Path) -> None:
    model = write(tmp_path)
    plain = report(model)
    changed = report(model, overrides=(("layers.*.mlp.down_proj", "q8f16_1"),))
    for name, loss in changed.items():
        if name.endswith("mlp.down_proj"):
            assert loss.plain == plain[name].loss
            assert loss.loss.relative_error < plain[name].loss.relative_error / 10
            assert loss.loss.nbytes > plain[name].loss.nbytes
        else:
            assert loss == plain[name]
    text = report_text(list(changed.values()))
    assert text.count("layers.0.mlp.down_proj") == 1
    assert "changed by the recipe file" in text


def test_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    weights, name = models.random_weights(models.E2B_LIKE), "layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].copy()
    weights[name][3, 4] = np.inf
    message = f"checkpoint tensor `{name}`: row 3 holds a weight that is not finite"
    with pytest.raises(QuantizationError, match=message) as caught:
        report(write(tmp_path, weights))
    assert "--allow-nonfinite" in str(caught.value.hint)


def test_weights_that_are_allowed_count_as_zeros_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = models.random_weights(models.E2B_LIKE)
    name = f"{DOWN}.weight"
    weights[name] = weights[name].copy()
    weights[name][3, 4:6] = 0
    expected = report(write(tmp_path, weights))
    weights[name][3, 4:6] = np.nan, -np.inf
    model = str(write(tmp_path, weights))
    assert cli.main([model, "--quant", "q4f16", "--report", "--json", "--allow-nonfinite"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["nonfinite_weights"] == {name: 2}
    found = {loss["name"]: loss["loss"] for loss in values["parameters"]}
    assert found == {name: asdict(loss.loss) for name, loss in expected.items()}
    assert cli.main([model, "--report", "--allow-nonfinite"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == f"`{name}`: 2 not finite, stored as 0"
    assert f"`{name}`: 2 not finite, stored as 0" in told.err.splitlines()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path)
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"schemes": {"embed_tokens": "q0f16"}}))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert cli.main([str(model), "--report", "--recipe", str(recipe)]) == 0
    assert "changed by the recipe file" in capsys.readouterr().out
    assert cli.main([str(model), "--report", "--json", "--quant", "q8f16"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["nonfinite_weights"] is None
    assert {"name", "role", "shape", "loss", "plain", "four_bits"} == set(values["parameters"][0])
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    recipe.write_text(json.dumps({"schemes": {"nothing.*": "q8f16_1"}}))
    assert cli.main([str(model), "--report", "--recipe", str(recipe)]) == 1
    assert "matches no parameter" in capsys.readouterr().err

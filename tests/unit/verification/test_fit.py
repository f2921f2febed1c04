"""Recipes fitted to a size: what they are chosen by is what a comparison of recipes measures."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.cli import verify as cli
from gemma4_compile.errors import UsageError
from gemma4_compile.verification import fit
from gemma4_compile.verification.fit import FitRequest, Sensitivity, Sizes, choose, fit_bits
from gemma4_compile.verification.frontier import FrontierRequest, compare_recipes
from gemma4_compile.verification.parts import Part
from tests import models
from tests.packages import Silent, config_of

pytestmark = pytest.mark.parity

TOKENS = 24


def part_that_loses(loss: float, more_bytes: int, name: str = "a") -> Sensitivity:
    return Sensitivity(Part(name, (name,), 1, (10, 10 + more_bytes)), 0.5 + loss, loss)


def test_no_other_set_of_parts_saves_more() -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        every = [
            part_that_loses(float(random.normal(1)), int(random.integers(1, 9)), str(index))
            for index in range(8)
        ]
        for room in (0, 5, 12, 20, 100):
            found = choose(every, room)
            sets = [one for count in range(9) for one in combinations(every, count)]
            fitting = [one for one in sets if sum(each.part.more_bytes for each in one) <= room]
            best = max(sum(each.loss for each in one) for one in fitting)
            own = [each for each in every if each.part in found]
            assert sum(each.part.more_bytes for each in own) <= room
            assert sum(each.loss for each in own) == pytest.approx(best)


def test_what_8_bits_do_not_help_has_4() -> None:
    exact, other = part_that_loses(-1e-4, 5, "a"), part_that_loses(0.0, 5, "b")
    assert choose([exact, other], 100) == frozenset()
    lost = part_that_loses(1e-4, 5, "c")
    assert choose([exact, other, lost], 100) == {lost.part}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["e2b", "moe"])
def test_losses_are_those_of_recipes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, text = tmp_path / "model", models.ALL[kind]
    config = config_of(models.write_checkpoint(folder, text, residual_scale=0.1))
    sizes = Sizes.of(config)
    middle = (sizes.bits(sizes.least) + sizes.bits(sizes.most)) / 2
    asked = FitRequest(str(folder), bits=middle, texts=("chat", "code"), text_tokens=TOKENS)
    found = fit_bits(asked, Silent())
    content = found.to_json()
    assert all(one.loss == one.kl_mean - found.base_kl for one in found.sensitivities)

    files = []
    for index, one in enumerate((*found.sensitivities[::4], None)):
        files.append(tmp_path / f"{index}.json")
        schemes = (
            found.recipe["schemes"] if one is None else dict.fromkeys(one.part.names, "q4f16_1")
        )
        files[-1].write_text(json.dumps({"schemes": schemes}))
    recipes = ("q8f16", *(f"q8f16+{file}" for file in files))
    request = FrontierRequest(str(folder), recipes=recipes, texts=asked.texts, text_tokens=TOKENS)
    compared = compare_recipes(request, Silent())
    base, *parts, whole = compared.recipes
    assert base.all_texts.kl_mean == pytest.approx(found.base_kl, rel=1e-3)
    for own, one in zip(parts, found.sensitivities[::4], strict=True):
        assert own.all_texts.kl_mean == pytest.approx(one.kl_mean, rel=1e-3)
    assert whole.all_texts.kl_mean == pytest.approx(found.found.all_texts.kl_mean, rel=1e-3)

    # The size is what was asked for, and no part that would save something has room.
    assert whole.weights_bytes == found.found.weights_bytes
    assert found.found.bits_per_weight == pytest.approx(whole.bits_per_weight)
    assert found.eight
    room = middle - found.found.bits_per_weight
    rest = [one.part for one in found.sensitivities if one.loss > 0 and one.part not in found.eight]
    assert 0 <= room < min(sizes.bits(one.more_bytes) for one in rest)

    monkeypatch.setattr(fit, "STATE_BYTES", 0)  # a recipe at a time
    assert fit_bits(asked, Silent()).recipe == found.recipe
    assert str(tmp_path) not in json.dumps(content)


def test_4_bits_keep_what_they_hold_exactly(tmp_path: Path) -> None:
    random, text = np.random.default_rng(0), models.E2B_LIKE
    weights = models.random_weights(text, residual_scale=0.1)
    for name, values in weights.items():
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            levels = random.integers(-7, 9, values.shape)
            levels[:, ::32] = 8  # 8 bits have no such level
            weights[name] = (levels / np.float32(64)).astype(np.float32)
    models.write_checkpoint(tmp_path, text, weights=weights)
    asked = FitRequest(str(tmp_path), bits=8.0, texts=("code",), text_tokens=TOKENS)
    found = fit_bits(asked, Silent())
    assert found.found.all_texts.kl_mean <= found.base_kl
    assert len(found.eight) < len(found.sensitivities) / 2


def test_sizes_that_cannot_be_are_said_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = Sizes.of(config_of(models.write_checkpoint(tmp_path, models.E2B_LIKE)))
    low, high = sizes.bits(sizes.least), sizes.bits(sizes.most)
    for bits in (low - 0.01, high + 0.01, 32.0):
        with pytest.raises(UsageError, match=r"--fit-bits: expected \d\.\d+ to \d\.\d+ bits"):
            fit_bits(FitRequest(str(tmp_path), bits=bits), Silent())
        assert cli.main([str(tmp_path), "--fit-bits", str(bits)]) == 2
    shown = capsys.readouterr().err
    least, most = shown.split("expected ")[1].split(" bits")[0].split(" to ")
    assert sizes.room(float(least)) >= 0
    assert sizes.room(float(most)) <= sizes.most - sizes.least
    assert sizes.room(low + 1e-9 + 0.001) >= 0


@pytest.mark.slow
def test_the_file_is_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = tmp_path / "a model", tmp_path / "fit.json"
    models.write_checkpoint(model, models.DENSE_LIKE)
    options = [str(model), "--fit-bits", "6", "--texts", "script", "--text-tokens", "12"]
    assert cli.main([*options, "--device", "cpu", "--output", str(file)]) == 0
    shown = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a model", "fit.json"]
    assert f"--recipe {file}" in shown
    line = next(line for line in shown.splitlines() if "--compare-recipes" in line)
    assert f"'{model}' --compare-recipes q4f16s,q4f16,q4f16+{file}" in line
    request = FrontierRequest(
        str(model), recipes=(f"q4f16+{file}",), texts=("script",), text_tokens=12
    )
    (compared,) = compare_recipes(request, Silent()).recipes

    assert cli.main([*options, "--device", "cpu", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["recipe"] == json.loads(file.read_text())
    assert content["found"]["bits_per_weight"] == compared.bits_per_weight <= 6
    assert {one["bits"] for one in content["parts"]} == {4, 8}
    assert cli.main(options) == 0
    assert json.dumps(content["recipe"], indent=1) in capsys.readouterr().out

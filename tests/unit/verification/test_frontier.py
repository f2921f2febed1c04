"""Recipes on a checkpoint: next to whole models on the weights that a package would hold."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.cli import verify as cli
from gemma4_compile.compile.pipeline import plan_model
from gemma4_compile.compile.request import compile_request
from gemma4_compile.errors import CheckpointError, QuantizationError, UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.quantization.schemes import SCHEMES
from gemma4_compile.verification.frontier import (
    FrontierRequest,
    compare_recipes,
    named_recipes,
    parse_recipe,
    parse_recipes,
)
from gemma4_compile.verification.frontier_table import frontier_table
from gemma4_compile.verification.measures import compare_logits, divergence
from gemma4_compile.verification.recipe_weights import RecipeWeights
from gemma4_compile.verification.texts import open_reader
from tests import hf, models, phone_checkpoints
from tests.gguf_files import Type, all_of, write_gguf
from tests.marks import slow_unless
from tests.packages import Silent, config_of

pytestmark = pytest.mark.parity

TOKENS = 40


def weights_in(checkpoint: models.Checkpoint, recipe: str) -> dict[str, np.ndarray]:
    """The weights as a recipe stores them (test_recipe_weights holds these to a conversion)."""
    held = checkpoint.weights

    def read(name: str, begin: int, end: int) -> np.ndarray:
        values = held[name]
        return values.reshape(-1, *values.shape[-1:] if values.ndim > 1 else ())[begin:end]

    table = model_parameters(config_of(checkpoint), COMPONENTS)
    stored = RecipeWeights(read, table, with_overrides(recipe, ()))
    rows = {name: values.shape[:-1] if values.ndim > 1 else values.shape
            for name, values in held.items()}  # fmt: skip
    return {
        name: stored.read(name, 0, prod(rows[name])).reshape(values.shape)
        for name, values in held.items()
    }


@pytest.mark.parametrize("kind", slow_unless("moe".__eq__, ["e2b", "moe"]))
def test_measures_are_those_of_whole_models(kind: str, tmp_path: Path) -> None:
    text = models.ALL[kind]
    checkpoint = models.write_checkpoint(tmp_path, text, residual_scale=0.1)
    recipes = ("q8f16", "f32", "q4f16")
    request = FrontierRequest(
        str(tmp_path), recipes=recipes, texts=("chat", "code"), text_tokens=TOKENS
    )
    found = compare_recipes(request, Silent())
    assert [one.name for one in found.recipes] == list(recipes)
    reader = open_reader(tmp_path, config_of(checkpoint), TOKENS)
    right = hf.load(text, checkpoint.weights, "float32")
    for name, one in zip(recipes, found.recipes, strict=True):
        own = hf.load(text, weights_in(checkpoint, name), "float32")
        every = []
        for each in reader.read(request.texts):
            logits = [hf.logits(model, each.ids) for model in (own, right)]
            expected = compare_logits(logits[0], logits[1], each.following)
            measures = one.texts[each.name]
            # Sums in float32 of another order: of what is far less than 1e-7 nothing can be said.
            np.testing.assert_allclose(measures.kl_mean, expected.kl_mean, rtol=1e-2, atol=1e-7)
            np.testing.assert_allclose(measures.kl_max, expected.kl_max, rtol=1e-2, atol=1e-6)
            np.testing.assert_allclose(measures.perplexity, expected.perplexity, rtol=1e-4)
            assert abs(measures.top1 - expected.top1) <= 1 / TOKENS
            every.append(divergence(*logits))
        mean = float(np.concatenate(every).mean())
        np.testing.assert_allclose(one.all_texts.kl_mean, mean, rtol=1e-2, atol=1e-7)
    eight, exact, four = found.recipes
    assert exact.all_texts.kl_max == 0
    assert 0 < eight.all_texts.kl_mean < four.all_texts.kl_mean
    assert exact.bits_per_weight == 32
    assert exact.weights_bytes == 4 * sum(values.size for values in checkpoint.weights.values())


@pytest.mark.slow
def test_the_report_is_json_without_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, output = tmp_path / "model", tmp_path / "report.json"
    models.write_checkpoint(model, models.E2B_LIKE)
    recipe = tmp_path / "mix.json"
    recipe.write_text('{"schemes": {"embed_tokens": "q0f16"}}')
    options = ["--compare-recipes", f"q4f16,q4f16+{recipe}", "--texts", "script", "--device", "cpu"]
    options += ["--text-tokens", "20", "--output", str(output)]
    assert cli.main([str(model), *options]) == 0
    shown = capsys.readouterr().out
    content = json.loads(output.read_text())
    assert shown.rstrip("\n") == frontier_table(content)
    assert str(tmp_path) not in output.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mix.json", "model", "report.json"]
    plain, mixed = content["recipes"]
    assert (plain["name"], mixed["name"]) == ("q4f16", "q4f16+mix.json")
    assert mixed["overrides"] == [["embed_tokens", "q0f16"]]
    assert mixed["schemes"].keys() == {*plain["schemes"], "q0f16"}
    assert mixed["weights_bytes"] > plain["weights_bytes"]
    assert content["texts"]["script"]["tokens"] == 20
    assert content["source"]["weights"].startswith("sha256:")
    assert "script: 20 tokens, " in shown

    # The same again is the same, and other weights are known from these.
    assert cli.main([str(model), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == content == json.loads(output.read_text())
    models.write_checkpoint(model, models.E2B_LIKE, seed=1)
    assert cli.main([str(model), *options]) == 0
    assert json.loads(output.read_text())["source"]["weights"] != content["source"]["weights"]


@pytest.mark.slow
def test_a_model_in_gguf_is_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    checkpoint = models.write_checkpoint(folder, models.E2B_LIKE)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, all_of(Type.F32))
    asked = FrontierRequest(str(folder), recipes=("q4f16",), texts=("chat", "code"), text_tokens=20)
    expected = compare_recipes(asked, Silent()).to_json()
    asked = replace(asked, model=str(file), tokenizer=str(folder))
    found = compare_recipes(asked, Silent()).to_json()
    assert found["source"]["kind"] == "gguf"
    assert found["texts"] == expected["texts"]
    for name, own in found["recipes"][0]["texts"].items():
        # Of another dtype, by which the scale of the embedding is rounded.
        right = expected["recipes"][0]["texts"][name]
        assert own["kl_mean"] == pytest.approx(right["kl_mean"], rel=1e-2)
        assert own["perplexity"] == pytest.approx(right["perplexity"], rel=5e-2)


def test_a_text_of_the_user_is_one_more(tmp_path: Path) -> None:
    models.write_checkpoint(tmp_path / "model", models.DENSE_LIKE)
    text = tmp_path / "own.txt"
    text.write_text("one two three four five")
    asked = FrontierRequest(str(tmp_path / "model"), recipes=("q8f16",), texts=(), text=text)
    found = compare_recipes(asked, Silent())
    assert list(found.recipes[0].texts) == ["given"]
    text.write_text("")
    with pytest.raises(UsageError, match="none of the texts"):
        compare_recipes(asked, Silent())


def test_recipes_of_a_list(tmp_path: Path) -> None:
    file = tmp_path / "mix.json"
    file.write_text('{"schemes": {"embed_tokens": "q8f16_1"}}')
    choice = parse_recipe(str(file))
    for usual in ("q4f16", "q4kf16"):
        name, recipe = choice.on(usual)
        overrides = [(pattern, scheme.name) for pattern, scheme in recipe.overrides]
        assert (name, overrides) == (f"{usual}+mix.json", [("embed_tokens", "q8f16_1")])
    assert parse_recipe(f"q8f16+{file}").on("q4f16")[0] == "q8f16+mix.json"
    for wrong in ("q5", "q5.json", "", "q4f16+none.json"):
        with pytest.raises(UsageError, match=r"--compare-recipes|--recipe"):
            parse_recipe(wrong)
    with pytest.raises(UsageError, match="the same name, `q4f16`"):
        parse_recipes(["q4f16", "q4f16"])
    two = parse_recipes([str(file), f"q4f16+{file}"])
    assert list(named_recipes(two, "q4kf16")) == ["q4kf16+mix.json", "q4f16+mix.json"]
    with pytest.raises(UsageError, match=r"the same name, `q4f16\+mix\.json`"):
        named_recipes(two, "q4f16")


def test_a_file_alone_is_put_on_what_a_compilation_takes(tmp_path: Path) -> None:
    text, scheme = models.E2B_LIKE, SCHEMES["q4f16_1"]
    plain = models.random_weights(text, dtype="bfloat16")
    trained = {
        name: scheme.load(scheme.store(values, name=name, first_row=0))
        if values.ndim == 2 and values.shape[1] % 32 == 0
        else values
        for name, values in plain.items()
    }
    file = tmp_path / "mix.json"
    file.write_text('{"schemes": {"embed_tokens": "q8f16_1"}}')
    names = []
    for index, weights in enumerate((plain, trained)):
        models.write_checkpoint(folder := tmp_path / str(index), text, weights=weights)
        line = [str(folder), "--recipe", str(file), "--target", "cpu", "-o", str(tmp_path / "none")]
        *_, planned = plan_model(compile_request(COMMAND.parse(line)))
        asked = FrontierRequest(
            str(folder), recipes=(str(file),), texts=("script",), text_tokens=TOKENS
        )
        (found,) = compare_recipes(asked, Silent()).recipes
        assert found.name == f"{planned.quant}+mix.json"
        assert found.overrides == tuple(planned.overrides)
        names.append(planned.quant)
    assert names == ["q4kf16", "q4f16"]


def test_a_file_alone_is_refused_for_phones(tmp_path: Path) -> None:
    file = tmp_path / "mix.json"
    file.write_text('{"schemes": {"embed_tokens": "q8f16_1"}}')
    phone_checkpoints.write(tmp_path / "model")
    asked = FrontierRequest(str(tmp_path / "model"), recipes=(str(file),))
    with pytest.raises(UsageError, match="a recipe file alone"):
        compare_recipes(asked, Silent())


def test_what_cannot_be_is_said_before_anything_is_run(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"schemes": {"nothing": "q8f16_1"}}')
    models.write_checkpoint(tmp_path / "model", models.E2B_LIKE)
    asked = FrontierRequest(str(tmp_path / "model"), recipes=(f"q4f16+{wrong}",))
    with pytest.raises(QuantizationError, match="matches no parameter"):
        compare_recipes(asked, Silent())
    with pytest.raises(CheckpointError, match="there is no model"):
        compare_recipes(replace(asked, model="no such model", recipes=("f16",)), Silent())
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"`tokenizer\.json` is missing"):
        compare_recipes(replace(asked, recipes=("f16",)), Silent())

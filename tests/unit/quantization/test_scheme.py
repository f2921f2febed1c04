"""A scheme of the tests (`tests/fixed_scheme.py`) from the command line to logits.

It shows what a scheme needs: its class, its layout, an entry in SCHEMES and one in `recipes.json`.
Everything else, from the options to the comparison with the checkpoint, asks the scheme.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.build import build_module, decoder_options, kernel_descriptions
from gemma4_compile.model_spec.text.reference import forward
from gemma4_compile.operators.base import operator_from
from gemma4_compile.options import package as options
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.passes.kernel_sources import kernel_sources
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization import schemes
from gemma4_compile.quantization.groups import EIGHT_BITS
from gemma4_compile.runtime import Engine
from gemma4_compile.targets import target_spec
from gemma4_compile.verification.thresholds import thresholds
from tests.fixed_scheme import FixedLayout, FixedScheme
from tests.models import E2B_LIKE, MOE_LIKE, write_checkpoint
from tests.packages import config_of, dequantised_weights

NAME = "fixed"
LINE = {"activations": "float32", "weights": "fixed8", "small": "fixed8"}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries that its registration would be: of SCHEMES, and of the file of recipes."""
    monkeypatch.setitem(schemes.SCHEMES, "fixed8", FixedScheme())
    for recipes in (schemes.RECIPES, schemes.NAMED):
        monkeypatch.setitem(recipes, NAME, schemes.recipe_of(NAME, LINE))
    monkeypatch.setattr(options, "QUANTS", (*options.QUANTS, NAME))


@pytest.mark.slow
@pytest.mark.package
def test_a_package_computes_with_the_stored_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", E2B_LIKE, dtype="float32")
    package = tmp_path / "package"
    request = [str(checkpoint.path), "--target", "cpu", "--quant", NAME, "--context", "64"]
    assert cli.main([*request, "-o", str(package)]) == 0, capsys.readouterr().err
    provenance = json.loads((package / abi.PROVENANCE_FILE).read_text())
    assert provenance["build"]["schemes"]["linear"] == "fixed8"
    ids = [2, 5, 77, 130, 9]
    engine = Engine.open(package)
    weights = dequantised_weights(package, checkpoint, NAME)
    expected = forward(config_of(checkpoint), weights, np.array(ids)).logits
    apart = np.abs(engine.prefill(ids[:-1]) - expected[-2]).max()
    apart = max(apart, np.abs(engine.decode(ids[-1]) - expected[-1]).max())
    assert apart < 1e-4 * np.abs(expected).max()


def test_plan_report_and_recipe_files_know_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = str(write_checkpoint(tmp_path / "c", E2B_LIKE, dtype="float32").path)
    assert cli.main([checkpoint, "--quant", NAME, "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["problem"] is None
    assert plan["requirements"]["features"] == [], "nothing of it is float16"
    assert plan["recipes"][NAME]["weights_bytes"] < plan["recipes"]["f32"]["weights_bytes"] / 3
    assert cli.main([checkpoint, "--quant", NAME, "--report", "--json"]) == 0
    losses = {one["name"]: one for one in json.loads(capsys.readouterr().out)["parameters"]}
    assert losses["embed_tokens"]["loss"]["scheme"] == "fixed8"
    assert losses["embed_tokens"]["loss"]["largest_error"] > 0
    file = tmp_path / "recipe.json"
    file.write_text('{"schemes": {"embed_tokens": "fixed8"}}')
    assert cli.main([checkpoint, "--quant", "q8f16", "--recipe", str(file), "--report"]) == 0
    assert "fixed8" in capsys.readouterr().out
    assert cli.main([checkpoint, "--quant", NAME, "--plan", "--activations", "int8"]) == 2
    names = "q4f16, q4f32, q4f16s, q4f16m, q4f16l, q4kf16, q4kf16m, q8f16"
    assert f"choose --quant {names}, or" in capsys.readouterr().err
    assert NAME in COMMAND.make_parser().format_help()


def test_its_losses_loosen_the_thresholds() -> None:
    assert thresholds(NAME, int8=False, whole=True) == EIGHT_BITS
    assert thresholds(NAME, int8=False, whole=False) == thresholds("f32", int8=False, whole=False)


@pytest.mark.slow
@pytest.mark.package
@pytest.mark.parametrize("target", ["webgpu", "metal", "cuda"])
def test_gpu_kernels_read_it(target: str, tmp_path: Path) -> None:
    """Of a model with experts, which has the matmuls of one without."""
    spec, recipe = target_spec(target), schemes.RECIPES[NAME]
    config = config_of(write_checkpoint(tmp_path / "c", MOE_LIKE, dtype="float32"))
    module = build_module(config, recipe, spec, decoder_options(recipe, spec, 32))
    kernels = map(operator_from, kernel_descriptions(module).values())
    layouts = {type(vars(one)["layout"]) for one in kernels if "layout" in vars(one)}
    assert FixedLayout in layouts, "a description knows its layout"
    assert "codes0" in "".join(kernel_sources(generate(lower(module, spec), spec), spec).values())

"""A head of its own beside the token embedding, next to transformers on the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.compile import resolve
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.targets import TargetSpec, target_spec
from tests import models, packages
from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory
from tests.parity.test_recipes import run_two_turns

pytestmark = pytest.mark.parity

# Each kind and each recipe once; with a tied head they are in tests/parity/test_recipes.py.
RECIPES = {"e2b": "q4f16", "dense": "q4f32", "moe": "q8f16", "e4b": "f16", "unified": "f32"}


def untied(kind: str) -> str:
    return f"{kind}, untied"


PAIRS = slow_unless(lambda *pair: pair == ("e2b", "q4f16"), RECIPES.items())


@pytest.mark.parametrize(("kind", "recipe"), PAIRS)
def test_two_turns_in_chunks(case: CaseFactory, kind: str, recipe: str) -> None:
    run_two_turns(case(untied(kind), recipe))


# Not the experts, as in tests/parity/test_int8.py.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["e2b", "dense"])
def test_int8_activations(case: CaseFactory, kind: str) -> None:
    run_two_turns(case(untied(kind), "q4f32", activations="int8"))


@pytest.mark.slow
def test_a_head_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings too small for either matrix of the vocabulary: the same logits from several."""
    text = {**models.UNTIED[untied("dense")], "vocab_size": 1024}
    path = models.write_checkpoint(tmp_path / "model", text).path

    def compile_it(name: str) -> Path:
        return packages.compile_package(path, "q4f16", tmp_path / name, optimised=False)

    def small(*names: str) -> TargetSpec:
        return replace(target_spec(*names), max_binding_bytes=32_768)

    made = [compile_it("whole")]
    monkeypatch.setattr(resolve, "target_spec", small)
    made.append(compile_it("parts"))
    names = {name for name, _ in Package.open(made[1]).map_weights()}
    assert {f"{name}.q_weight.part1" for name in ("lm_head", "embed_tokens")} <= names
    ids = models.prompt(20).tolist()
    whole, parts = (Engine.open(package) for package in made)
    for engine in (whole, parts):
        engine.clear()
    np.testing.assert_array_equal(parts.prefill(ids[:-2]), whole.prefill(ids[:-2]))
    for token in ids[-2:]:
        np.testing.assert_array_equal(parts.decode(token), whole.decode(token))


def test_the_two_matrices_are_stored_as_they_are(case: CaseFactory) -> None:
    compiled = case(untied("unified"), "f32")
    checkpoint = models.Checkpoint(
        compiled.package,
        models.UNTIED[untied("unified")],
        models.random_weights(models.UNTIED[untied("unified")]),
        "float32",
    )
    stored = packages.dequantised_weights(compiled.package, checkpoint, "f32")
    for name in ("embed_tokens.weight", "lm_head.weight"):
        np.testing.assert_array_equal(stored[name], checkpoint.weights[name])
    assert not np.array_equal(stored["embed_tokens.weight"], stored["lm_head.weight"])

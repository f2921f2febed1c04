"""Routers in corner cases, against transformers: ties, experts that nobody or everybody chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gemma4_compile.model_spec.text import reference
from gemma4_compile.runtime import Engine
from tests import hf, models, packages, routing, tolerances
from tests.marks import slow_unless
from tests.parity.conftest import Case
from tests.routing import EXPERTS, LAYERS, TOP_K, Weights

pytestmark = pytest.mark.parity

ROUTINGS: dict[str, Callable[[Weights], Weights]] = {
    "all tokens choose the same": lambda weights: routing.same_for_all(weights, (6, 3)),
    "each token has its own": routing.decided_by_token,
    "pairs of equal experts": lambda weights: routing.with_twins(
        weights, ((0, 7), (2, 3), (4, 5)), 0.0
    ),
    "pairs of nearly equal experts": lambda weights: routing.with_twins(
        weights, ((7, 0), (2, 3), (5, 4)), 2e-7
    ),
}


def compiled(name: str, recipe: str, folder: Path) -> Case:
    weights = ROUTINGS[name](models.random_weights(models.MOE_LIKE))
    checkpoint = models.write_checkpoint(folder / "checkpoint", models.MOE_LIKE, weights=weights)
    package = packages.compile_package(checkpoint.path, recipe, folder / "package", optimised=False)
    meant = packages.dequantised_weights(package, checkpoint, recipe)
    return Case(
        package=package,
        engine=Engine.open(package),
        model=hf.load(models.MOE_LIKE, meant, "float32"),
        window=models.MOE_LIKE["sliding_window"],
        tolerance=tolerances.ACTIVATIONS[recipe],
        routing_gap=0.0,
    )


@pytest.mark.parametrize(
    ("name", "recipe"),
    # Quantised, the scores of a pair differ by more than what a choice may depend on.
    slow_unless(
        lambda name, _: name == "pairs of nearly equal experts",
        [*((name, "f32") for name in ROUTINGS), *((name, "q4f16") for name in list(ROUTINGS)[:2])],
    ),
)
def test_prefill_in_chunks_and_decoding(name: str, recipe: str, tmp_path: Path) -> None:
    case = compiled(name, recipe, tmp_path)
    count = 3 * case.window + 5
    ids = models.prompt(count + 8)
    for chunk in (1, 7, packages.PREFILL_CHUNK):
        case.engine.clear()
        found = case.prefill(ids, 0, count, chunk)
        found |= case.decode(ids, count, len(ids))
        case.check(ids, found)


def choices(weights: Weights) -> np.ndarray:
    """Experts of (layer, position, slot), as transformers chooses them."""
    model = hf.load(models.MOE_LIKE, weights, "float32")
    found: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda router, inputs, outputs: found.append(outputs[2]))
        for module in model.modules()
        if type(module).__name__ == "Gemma4TextRouter"
    ]
    hf.logits(model, models.prompt(40))
    for hook in hooks:
        hook.remove()
    return np.stack([ids.numpy() for ids in found])


def test_the_weights_choose_as_their_names_say() -> None:
    weights = models.random_weights(models.MOE_LIKE)
    same = choices(routing.same_for_all(weights, (6, 3)))
    assert same.shape == (LAYERS, 40, TOP_K)
    assert (same == (6, 3)).all()
    own = np.sort(choices(routing.decided_by_token(weights)), axis=-1)
    assert (own == own[0]).all()  # a token's choice is the same in every layer
    assert set(own.flat) == set(range(EXPERTS))
    decided = hf.load(models.MOE_LIKE, routing.decided_by_token(weights), "float32")
    assert hf.routing_gaps(decided, models.prompt(40)[None]).min() > 1


def test_the_reference_breaks_ties_by_the_lower_index() -> None:
    config = packages.config_of(
        models.Checkpoint(Path(), models.MOE_LIKE, {}, "float32")  # the config alone is read
    )
    weights = routing.with_twins(models.random_weights(models.MOE_LIKE), ((2, 6), (1, 3)), 0.0)
    x = np.random.default_rng(1).normal(size=(50, config.hidden_size)).astype(np.float32)
    chosen, _ = reference.route(config, weights, "layers.0.", x)
    tied = [row.tolist() for row in chosen if set(row) & {2, 6}]
    assert tied
    assert all(row.index(2) < row.index(6) if 6 in row else True for row in tied)
    assert [2, 6] in tied

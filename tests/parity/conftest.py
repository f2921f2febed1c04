"""Compiled models beside transformers on the weights that their packages hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.targets.spec import NATIVE, WORDS
from tests import hf, models, packages, tolerances
from tests.hf import Ids
from tests.shared import made_once, shared_folder

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
CaseFactory = Callable[..., "Case"]

PROMPTS_TRIED = 200
BATCHES = 10


@dataclass(frozen=True)
class Case:
    """One package, opened, and its truth: transformers in float32 on the same weights."""

    package: Path
    engine: Engine
    model: Any
    window: int
    tolerance: float
    routing_gap: float
    _truths: dict[tuple[int, ...], Float32Array] = field(default_factory=dict)

    def truth(self, ids: Ids) -> Float32Array:
        """Logits (len(ids), vocab_size) that transformers gives for one whole sequence."""
        key = tuple(int(i) for i in ids)
        if key not in self._truths:
            self._truths[key] = hf.logits(self.model, key)
        return self._truths[key]

    def prompt(self, count: int, *, seed: int = 0) -> IntArray:
        """Token ids for which every choice of experts is decided, from `seed` on.

        Where two experts score the same within the tolerance, both choices are right, and nothing
        that follows can be compared.
        """
        tried = BATCHES * PROMPTS_TRIED
        for first in range(seed, seed + tried, PROMPTS_TRIED):
            seeds = range(first, first + PROMPTS_TRIED)
            ids = np.stack([models.prompt(count, seed=one) for one in seeds])
            decided = hf.routing_gaps(self.model, ids) > self.routing_gap
            if decided.any():
                return ids[int(decided.argmax())]
        raise AssertionError(f"none of {tried} prompts of {count} tokens is decided")

    def check(self, ids: Ids, found: Mapping[int, Float32Array]) -> None:
        """Compare logits by position, and the greedy token wherever the truth has decided on one.

        Two values within the tolerance of the truth change places only if they are closer than
        twice the tolerance.
        """
        truth = self.truth(ids)
        for position, logits in found.items():
            expected = truth[position]
            assert np.isfinite(logits).all()
            np.testing.assert_allclose(
                logits, expected, rtol=0, atol=self.tolerance, err_msg=f"position {position}"
            )
            if margin(expected) > 2 * self.tolerance:
                assert logits.argmax() == expected.argmax(), f"position {position}"

    def decode(self, ids: Ids, begin: int, end: int) -> dict[int, Float32Array]:
        """Add ids[begin:end] one at a time; logits by position."""
        return {i: self.engine.decode(int(ids[i])) for i in range(begin, end)}

    def prefill(
        self, ids: Ids, begin: int, end: int, chunk: int | None = None
    ) -> dict[int, Float32Array]:
        """Add ids[begin:end], `chunk` at a time; logits of each chunk's last position."""
        step = chunk or end - begin
        edges = [*range(begin, end, step), end]
        return {
            last - 1: self.engine.prefill([int(i) for i in ids[first:last]])
            for first, last in pairwise(edges)
        }


def margin(logits: Float32Array) -> float:
    """How far the best logit is above the second best."""
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> CaseFactory:
    """Compile a kind with a recipe, once a run."""

    @cache
    def make(
        kind: str,
        recipe: str = "f32",
        *,
        dtype: str = "float32",
        residual_scale: float = 1.0,
        activations: str = "float",
        float16: str = NATIVE,
        key_bytes: int | None = None,
    ) -> Case:
        folder = tmp_path_factory.mktemp(f"{kind}-{recipe}")
        checkpoint = models.write_checkpoint(
            folder / "checkpoint",
            models.ALL[kind],
            dtype=dtype,
            residual_scale=residual_scale,
        )
        library_of = (
            make(kind, recipe, activations=activations).package if residual_scale > 1 else None
        )
        name = f"{kind}-{recipe}-{dtype}-{residual_scale:g}-{activations}-{float16}"
        name += "" if key_bytes is None else f"-{key_bytes}"
        package = made_once(
            shared_folder(tmp_path_factory) / "parity" / name,
            lambda output: packages.compile_package(
                *(checkpoint.path, recipe, output),
                library_of=library_of,
                activations=activations,
                # Those of tests/parity/test_float32.py are what users get.
                optimised=(
                    kind in models.KINDS and (recipe, dtype, key_bytes) == ("f32", "float32", None)
                ),
                float16=float16,
                key_bytes=key_bytes,
            ),
        )
        weights = packages.dequantised_weights(package, checkpoint, recipe)
        enlarged = tolerances.LARGE_RESIDUALS if residual_scale > 1 else 1.0
        computed = "f32" if float16 == WORDS else recipe
        bound = tolerances.ACTIVATIONS[computed]
        return Case(
            package=package,
            engine=Engine.open(package),
            model=hf.load(checkpoint.text_config, weights, dtype),
            window=checkpoint.text_config["sliding_window"],
            tolerance=(tolerances.LOGITS_INT8 if activations == "int8" else bound) * enlarged,
            routing_gap=tolerances.ROUTING_GAPS[computed] * enlarged,
        )

    return make

"""A forward of several sequences on the emulated Metal device: what each has alone."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.runtime import Engine, Package
from tests import tolerances
from tests.drafted import drafted_package
from tests.metal.test_drafts import CASES
from tests.several_sequences import ids_of

LENGTHS = (1, 12, 40)  # of prompts; a window is of 16 keys or fewer, and wraps
STEPS = ((0, 1, 2), (2, 0), (1, 2, 0))  # the sequences of each step, in the order of its rows


@pytest.mark.slow  # tests/metal/test_tiny.py does it for one model
@pytest.mark.parametrize(("kind", "recipe"), CASES[:2])
def test_each_row_has_the_logits_of_its_sequence_alone(
    kind: str,
    recipe: str,
    metal_packages: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    package = Package.open(drafted_package(tmp_path_factory, kind, recipe, target="metal").package)
    engine, alone = Engine(package, drafts=0, sequences=3), Engine(package, drafts=0)
    assert engine.joint.steps is not None
    prompts = [[token % 256 for token in ids_of(length, length)] for length in LENGTHS]
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        engine.prefill(prompt, sequence)
    rows: list[list[tuple[int, np.ndarray]]] = [[] for _ in prompts]
    for number, step in enumerate(STEPS):
        tokens = [20 * number + 5 + place for place in step]
        engine.joint.add([sequences[place] for place in step], tokens)
        for place, token in zip(step, tokens, strict=True):
            logits = sequences[place].logits
            assert logits is not None
            rows[place].append((token, engine.device.read(logits).reshape(-1).copy()))
    for prompt, found in zip(prompts, rows, strict=True):
        alone.clear()
        alone.prefill(prompt)
        for token, row in found:
            error = np.abs(alone.decode(token) - row).max()
            assert error <= tolerances.ACTIVATIONS[recipe]

"""A forward of several sequences of every kind of model, against transformers on each."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime import Engine
from tests import gemma3n, models
from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory, Float32Array

pytestmark = pytest.mark.parity

STEPS = 3


KINDS = (*models.KINDS, *gemma3n.KINDS)


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "moe", KINDS))
def test_rows_of_sequences_of_several_lengths(case: CaseFactory, kind: str) -> None:
    """One token long, about a window, and beyond what rings hold."""
    compiled = case(kind)
    engine = Engine.open(compiled.package, sequences=3)
    assert engine.joint.most > 1
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    lengths = (1, compiled.window - 1, 3 * compiled.window + 40)
    texts = [
        compiled.prompt(length + STEPS, seed=1000 * index) for index, length in enumerate(lengths)
    ]
    for sequence, ids, length in zip(sequences, texts, lengths, strict=True):
        engine.prefill([int(one) for one in ids[:length]], sequence)
    found: list[dict[int, Float32Array]] = [{} for _ in texts]
    for step in range(STEPS):
        tokens = [int(ids[length + step]) for ids, length in zip(texts, lengths, strict=True)]
        engine.joint.add(sequences, tokens)
        for index, sequence in enumerate(sequences):
            assert sequence.logits is not None
            logits = engine.device.read(sequence.logits).reshape(-1)
            found[index][lengths[index] + step] = logits
    for ids, rows in zip(texts, found, strict=True):
        compiled.check(ids, rows)

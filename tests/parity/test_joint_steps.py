"""A forward of several sequences of every kind of model, against transformers on each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.joint import Riders
from tests import gemma3n, hf, models
from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory, Float32Array
from tests.several_sequences import ids_of

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


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "moe", KINDS))
def test_a_prompts_last_rows_beside_tokens_of_others(case: CaseFactory, kind: str) -> None:
    """From its first row on, about a window, and beyond what rings hold; in one step and in two."""
    compiled = case(kind)
    engine = Engine.open(compiled.package, sequences=3)
    assert engine.joint.most_riders(2) == 6
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    lengths = (5, compiled.window - 2, 3 * compiled.window + 40)
    texts = [compiled.prompt(length + 10, seed=1000 * at) for at, length in enumerate(lengths)]
    for place, reader in enumerate(sequences):
        writers = [one for one in sequences if one is not reader]
        read = 0 if place == 0 else lengths[place]
        found: list[dict[int, Float32Array]] = [{} for _ in texts]
        for sequence, ids, length in zip(sequences, texts, lengths, strict=True):
            sequence.clear()
            count = read if sequence is reader else length
            if count:
                engine.prefill([int(one) for one in ids[:count]], sequence)
        for count in (6, 2):
            rows = [int(one) for one in texts[place][reader.length : reader.length + count]]
            places = [sequences.index(one) for one in writers]
            tokens = [int(texts[at][sequences[at].length]) for at in places]
            engine.joint.add_beside(writers, tokens, Riders(reader, rows)).keep(0, 2)
            for sequence, own in zip(sequences, found, strict=True):
                assert sequence.logits is not None
                own[sequence.length - 1] = engine.device.read(sequence.logits).reshape(-1)
        assert reader.length == read + 8
        for ids, own in zip(texts, found, strict=True):
            compiled.check(ids, own)


def test_a_prompt_of_tiny_is_read_beside_two_replies(tiny_package: Path) -> None:
    """Its last seven rows, in two steps in which two others have a token each."""
    truth, engine = hf.tiny(tiny_package, "f32"), Engine.open(tiny_package, sequences=3)
    texts = [ids_of(count, count) for count in (90, 20, 37)]
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    for sequence, ids, rest in zip(sequences, texts, (2, 2, 7), strict=True):
        engine.prefill(ids[:-rest], sequence)
    for rows in (5, 2):
        *writers, reader = sequences
        tokens = [ids[one.length] for one, ids in zip(writers, texts, strict=False)]
        own = texts[2][reader.length : reader.length + rows]
        engine.joint.add_beside(writers, tokens, Riders(reader, own)).keep(0, 2)
        for sequence, ids in zip(sequences, texts, strict=True):
            expected = hf.logits(truth, np.array(ids[: sequence.length]))[-1]
            np.testing.assert_allclose(engine.read_logits(sequence), expected, rtol=0, atol=1e-4)

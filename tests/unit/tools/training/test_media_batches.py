from __future__ import annotations

from itertools import islice
from random import Random

import numpy as np
from tokenizers import Tokenizer

from gemma4_compile.tiny.checkpoint import shipped_file
from tools.training.tiny.data import of_last_turns
from tools.training.tiny.media_batches import (
    draw_pictures,
    draw_sounds,
    examination_batches,
    training_steps,
)
from tools.training.tiny.model import SHIPPED_FILES

TOKENIZER = Tokenizer.from_buffer(shipped_file("tokenizer.json"))


def token(name: str) -> int:
    found = TOKENIZER.token_to_id(name)
    assert found is not None
    return int(found)


def test_rows_stand_between_their_marks_and_are_not_predicted() -> None:
    batch = draw_pictures(Random(3), TOKENIZER, 5000, test=False, most=6)
    assert batch.pictures is not None
    rows = batch.pictures.grid[0] * batch.pictures.grid[1]
    soft = batch.ids == token("<|image|>")
    assert soft.sum() == rows * len(batch.pictures.shapes)
    assert (batch.ids == token("<|image>")).sum() == len(batch.pictures.shapes)
    after = np.flatnonzero(batch.ids == token("<image|>"))
    assert np.all(batch.ids.reshape(-1)[after - rows] == token("<|image|>"))
    assert np.all(batch.ids.reshape(-1)[after - rows - 1] == token("<|image>"))
    assert not np.any(batch.wanted & soft)
    assert np.all(batch.wanted.any(axis=1))


def test_sounds_have_rows_and_labels_of_their_length() -> None:
    batch = draw_sounds(Random(4), TOKENIZER, 30.0, test=False)
    assert batch.sounds is not None
    rows = (batch.ids == token("<|audio|>")).sum()
    lengths = -(-((batch.sounds.samples - 1) // 160) // 4)
    assert rows == lengths.sum()
    assert batch.sounds.states.shape == (len(lengths), lengths.max())


def test_only_the_last_answer_counts_in_an_examination() -> None:
    batch = draw_pictures(Random(5), TOKENIZER, 5000, test=True, most=6)
    last = of_last_turns(batch.ids, batch.wanted)
    for ids, wanted in zip(batch.ids, last, strict=True):
        text = TOKENIZER.decode(ids[ids > 0].tolist(), skip_special_tokens=False)
        answer = text.rpartition("<|turn>model\n")[2].rstrip("\n")
        assert TOKENIZER.decode(ids[wanted].tolist(), skip_special_tokens=False) == answer


def test_steps_do_not_depend_on_the_workers_or_on_where_a_run_began() -> None:
    def some(first: int, workers: int) -> list[list[int]]:
        steps = training_steps(SHIPPED_FILES, 7, first, 3000, 10.0, workers)
        return [pictures.ids.tolist() for pictures, _ in islice(steps, 3)]

    whole = some(0, 1)
    assert some(0, 2) == whole
    assert some(1, 1)[:2] == whole[1:]


def test_examinations_are_repeated() -> None:
    first, again = (examination_batches(SHIPPED_FILES, 1, 1, 4000) for _ in range(2))
    assert len(first) == 2
    assert all((one.ids == two.ids).all() for one, two in zip(first, again, strict=True))

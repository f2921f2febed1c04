"""What `tiny-embedding` is trained on, and what it finds of what it was not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import EmbeddingGemma2Model

from gemma4_compile.tiny import checkpoint, materialize_embedding
from tools.training.embedding.meanings import (
    PROMPTS,
    Meaning,
    Pair,
    batch,
    draw,
    examination,
    question,
)
from tools.training.embedding.model import SIZES, config, embeddings, encoded, tokenizer
from tools.training.embedding.train import loss_of, nearest
from tools.training.embedding.wordings import KINDS
from tools.training.tiny.question import held_out

MOST_BYTES = 1_000_000
EXAMINED = 200


def pair_of(words: Mapping[str, str], asked: Mapping[str, str]) -> Pair:
    return Pair("a", "b", asked, Meaning(KINDS[0], words))


def test_what_ships_has_the_config_of_the_training_and_its_prompts(tmp_path: Path) -> None:
    materialize_embedding(tmp_path)
    assert (tmp_path / "config.json").read_text() == config().to_json_string()
    prompts = json.loads((tmp_path / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == PROMPTS
    own = [name for name in tmp_path.rglob("*") if name.is_file() and name.name != "tokenizer.json"]
    assert sum(name.stat().st_size for name in own) <= MOST_BYTES


def test_its_tokenizer_is_tinys_between_begin_and_end(tmp_path: Path) -> None:
    materialize_embedding(tmp_path)
    found = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    plain = Tokenizer.from_str(checkpoint.shipped_file("tokenizer.json").decode())
    text = "Alice has a red ball."
    assert found.encode(text).ids == [2, *plain.encode(text).ids, 1]
    assert found.encode(text, add_special_tokens=False).ids == plain.encode(text).ids


def test_no_meaning_of_the_training_is_examined() -> None:
    trained = [pair.meaning for pair in batch(Random(0), 200) if pair.meaning is not None]
    assert trained
    assert not any(held_out(meaning.key) for meaning in trained)
    examined = examination(0, 50)
    assert all(pair.meaning is not None and held_out(pair.meaning.key) for pair in examined)
    assert all(pair.first != pair.second for pair in examined)


def test_a_question_matches_every_answer_with_its_words_and_no_other() -> None:
    ball = {"name": "Ida", "colour": "red", "thing": "ball"}
    asked = pair_of(ball, {"name": "Ida", "thing": "ball"})
    assert asked.matches(pair_of({**ball, "colour": "blue"}, {}))
    assert not asked.matches(pair_of({**ball, "name": "Leo"}, {}))
    assert not pair_of(ball, ball).matches(pair_of({**ball, "colour": "blue"}, {}))


def test_questions_say_a_part_of_what_answers_them() -> None:
    rng = Random(0)
    for _ in range(50):
        meaning = draw(rng, test=False)
        if not meaning.kind.questions:
            continue
        found = question(rng, meaning)
        assert found.matches(found)
        assert 0 < len(found.asked) < len(meaning.words)


def test_texts_that_are_as_right_count_for_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, SIZES[0], generator=generator)
    second = first.clone()
    second[2] = first[0]  # as near to the first text as its own partner
    own = torch.eye(3, dtype=torch.bool)
    shared = own.clone()
    shared[0, 2] = shared[2, 0] = True
    assert loss_of(first, second, own) - loss_of(first, second, shared) > 0.1


@pytest.mark.usefixtures("one_thread")
def test_held_out_paraphrases_are_the_nearest_of_all(tmp_path: Path) -> None:
    materialize_embedding(tmp_path)
    model: Any = EmbeddingGemma2Model.from_pretrained(tmp_path, dtype=torch.float32)
    model.eval()
    pairs = examination(3, EXAMINED)
    texts = [[pair.first for pair in pairs], [pair.second for pair in pairs]]
    with torch.no_grad():
        halves = [
            [embeddings(model, *encoded(tokenizer(), half), size) for size in SIZES]
            for half in texts
        ]
    for size, first, second in zip(SIZES, *halves, strict=True):
        assert nearest(first, second) >= 0.9, f"of {size} channels"

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
from tokenizers import Tokenizer

from gemma4_compile.tiny.checkpoint import shipped_file
from tools.training.tiny.data import answered
from tools.training.tiny.dialogues import SEVERAL_TURNS
from tools.training.tiny.further import (
    all_evaluation_dialogues,
    further_dialogue,
    number_words,
    signs,
    today,
)
from tools.training.tiny.question import draw, held_out

PER_KIND = 3


def test_earlier_kinds_are_not_forgotten() -> None:
    """All of them, of several turns as well: a seed must not draw the same kind twice."""
    kinds = Counter(turn.kind for seed in range(3000) for turn in further_dialogue(seed).turns)
    expected = {dialogue.turns[-1].kind for dialogue in all_evaluation_dialogues(PER_KIND)}
    assert expected <= set(kinds)
    assert len(SEVERAL_TURNS) == 6
    for kind in ("recall", "brief", "going on", "once more", "system names", "never told"):
        assert kinds[kind] > 20, kind


def test_facts_are_those_of_today() -> None:
    answers = {turn.answer for seed in range(6000) for turn in further_dialogue(seed).turns}
    assert "The targets are webgpu, metal, cuda and cpu." in answers
    assert "The targets are webgpu and cpu." not in answers


def test_new_kinds_are_held_out_as_well() -> None:
    kinds = Counter(dialogue.turns[-1].kind for dialogue in all_evaluation_dialogues(PER_KIND))
    assert {"numbers in words", "signs", "today", "tools"} <= set(kinds)
    assert set(kinds.values()) == {PER_KIND}
    rng = Random(0)
    for make in (number_words, signs, today):
        assert held_out(draw(rng, make, test=True).key)


def test_numbers_in_words_have_no_digits_and_answers_have() -> None:
    rng = Random(3)
    for _ in range(200):
        question = number_words(rng)
        assert not any(letter.isdigit() for letter in question.text)
        assert any(letter.isdigit() for letter in question.answer)


def test_what_a_tool_returns_is_not_predicted() -> None:
    tokenizer = Tokenizer.from_buffer(shipped_file("tokenizer.json"))
    call, response = "<|tool_call>call:f{a:1}<tool_call|>", "response:f{value:2}<tool_response|>"
    text = (
        "<bos><|turn>system\n<|tool>declaration:f{}<tool|><turn|>\n<|turn>user\nHi<turn|>\n"
        f"<|turn>model\n{call}<|tool_response>{response}It is 2.<turn|>\n"
        "<|turn>user\nHi<turn|>\n<|turn>model\nyes<turn|>\n"
    )
    ids = np.array([tokenizer.encode(text, add_special_tokens=False).ids])
    chosen = ids[answered(ids, tokenizer.token_to_id("model"))]
    found = tokenizer.decode(chosen.tolist(), skip_special_tokens=False)
    assert found == f"{call}<|tool_response>It is 2.<turn|>yes<turn|>"

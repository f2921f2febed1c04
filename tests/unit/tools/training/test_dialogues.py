from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from tokenizers import Tokenizer

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny import checkpoint
from tools.training.tiny.dialogues import Dialogue, evaluation_dialogues, recall, training_dialogue
from tools.training.tiny.numbers import add, divide, multiply, story, subtract
from tools.training.tiny.question import Maker, draw, held_out
from tools.training.tiny.word_lists import sort, sort_numbers

PER_KIND = 10


@pytest.fixture(scope="module")
def held_out_dialogues() -> list[Dialogue]:
    return evaluation_dialogues(PER_KIND)


def test_a_seed_gives_one_dialogue() -> None:
    assert training_dialogue(7) == training_dialogue(7) != training_dialogue(8)


def test_every_kind_has_its_held_out_questions(held_out_dialogues: list[Dialogue]) -> None:
    counts = Counter(dialogue.turns[-1].kind for dialogue in held_out_dialogues)
    assert len(counts) >= 30
    assert set(counts.values()) == {PER_KIND}


@pytest.mark.parametrize("make", [add, subtract, multiply, story, sort])
def test_training_never_draws_what_is_held_out(make: Maker) -> None:
    rng = Random(0)
    trained = {draw(rng, make, test=False).key for _ in range(2000)}
    asked = {draw(rng, make, test=True).key for _ in range(200)}
    assert not trained & asked
    assert all(held_out(key) for key in asked)


def test_held_out_sums_appear_nowhere_in_training_dialogues() -> None:
    sums = re.compile(r"(\d+) plus (\d+) is")
    found = [
        pair
        for seed in range(4000)
        for turn in training_dialogue(seed).turns
        for pair in sums.findall(turn.answer)
    ]
    assert len(found) > 300
    assert not [pair for pair in found if held_out(f"add {pair[0]} {pair[1]}")]


def test_answers_are_right() -> None:
    rng = Random(1)
    signs = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}
    for make in (add, subtract, multiply, divide):
        for _ in range(200):
            question = make(rng)
            match = re.fullmatch(r"(\d+) ([a-z ]+) (\d+) is (-?\d+)\.", question.answer)
            assert match is not None
            left, word, right, result = match.groups()
            assert eval(f"{left} {signs[word]} {right}") == int(result)
    for _ in range(100):
        words = sort(rng).answer.split(", ")
        assert words == sorted(words)
        numbers = [int(number) for number in sort_numbers(rng).answer.split(", ")]
        assert numbers == sorted(numbers)


def test_text_is_what_the_chat_template_renders(held_out_dialogues: list[Dialogue]) -> None:
    source = checkpoint.shipped_file("chat_template.jinja").decode()
    template = ChatTemplate(source, {"bos_token": "<bos>"})
    for dialogue in held_out_dialogues:
        messages = [Message(role, text) for role, text in dialogue.messages()]
        rendered = template.render(messages, thinking=False)
        assert dialogue.text() == rendered.removesuffix("<|turn>model\n")


def test_what_is_recalled_lies_beyond_the_sliding_window() -> None:
    tokenizer = Tokenizer.from_buffer(checkpoint.shipped_file("tokenizer.json"))
    window = checkpoint.config()["text_config"]["sliding_window"]
    for seed in range(40):
        dialogue = recall(Random(seed), True)
        value = dialogue.turns[-1].answer.rstrip(".").split()[-1]
        told = [
            index
            for index, turn in enumerate(dialogue.turns[:-1])
            if turn.kind == "told" and value in turn.answer
        ]
        between = "".join(turn.user + turn.answer for turn in dialogue.turns[told[-1] + 1 : -1])
        assert len(tokenizer.encode(between).ids) > window // 2
        after = dialogue.text().split(dialogue.turns[told[-1]].answer)[-1]
        assert len(tokenizer.encode(after).ids) > window

"""The second stage of the training: tools, numbers in words, wordings that people used.

`dialogues` is what the tokenizer and the first stage learned from and stays as it is. Here most
dialogues are of the first stage's kinds, so that nothing is forgotten, and the others are new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tools.training.tiny import numbers
from tools.training.tiny.dialogues import (
    Dialogue,
    Turn,
    any_question,
    evaluation_dialogues,
    plain_system,
    training_dialogue,
    typed,
)
from tools.training.tiny.number_words import in_words
from tools.training.tiny.question import Maker, Question, draw, held_out, opened
from tools.training.tiny.tools import ASK, make_tool
from tools.training.tiny.world import DAYS

# What the first stage says and is no longer so.
_CORRECTIONS = {
    "The targets are webgpu and cpu.": "The targets are webgpu, metal, cuda and cpu.",
    "Compile for cpu, then run gemma4-chat DIR.": (
        "Compile for cpu, cuda or metal, then run gemma4-chat DIR."
    ),
    "gemma4-compile supports E2B, E4B and 31B.": (
        "gemma4-compile supports E2B, E4B, 12B, 26B-A4B and 31B."
    ),
}
_CALCULATIONS = ("addition", "subtraction", "multiplication", "division", "too large")
_COUNTED: tuple[Maker, ...] = (
    numbers.add,
    numbers.subtract,
    numbers.multiply,
    numbers.neighbour,
    numbers.neighbour,
    numbers.neighbour,
    numbers.parity,
    numbers.compare,
    numbers.count,
)
_SIGNED = (
    ("{a}*{b}", "times"),
    ("{a} times {b}", "times"),
    ("What is {a} * {b}?", "times"),
    ("{a}/{b}", "divided by"),
    ("What is {a} / {b}?", "divided by"),
    ("{a} minus {b}", "minus"),
    ("{a}+{b}=", "plus"),
)
_TODAY = (
    ("Today is {n}. What is tomorrow?", 1),
    ("If today is {n}, what day is tomorrow?", 1),
    ("Yesterday was {n}. What is today?", 1),
    ("Today is {n}. What was yesterday?", -1),
    ("If today is {n}, what day was yesterday?", -1),
    ("Tomorrow is {n}. What is today?", -1),
)


def corrected(dialogue: Dialogue) -> Dialogue:
    """The dialogue with facts as they are now."""
    turns = (
        replace(turn, answer=_CORRECTIONS.get(turn.answer, turn.answer)) for turn in dialogue.turns
    )
    return replace(dialogue, turns=tuple(turns))


def number_words(rng: Random) -> Question:
    """A question whose numbers are words."""
    while True:
        question = rng.choice(_COUNTED)(rng)
        text = in_words(question.text)
        if text is not None:
            return replace(question, kind="numbers in words", text=text)


def signs(rng: Random) -> Question:
    """A calculation without spaces, or without the words around it."""
    template, word = rng.choice(_SIGNED)
    a, b = rng.randint(0, numbers.TABLE), rng.randint(1, numbers.TABLE)
    if word in ("plus", "minus"):
        a, b = rng.randint(0, numbers.LARGEST), rng.randint(0, numbers.LARGEST)
        a, b = max(a, b), min(a, b)
    a = a * b if word == "divided by" else a
    value = {"plus": a + b, "minus": a - b, "times": a * b, "divided by": a // b if b else 0}[word]
    keys = {"plus": numbers.sum_key(a, b), "minus": f"subtract {a} {b}"}
    key = keys.get(word, f"multiply {a} {b}" if word == "times" and a < b else None)
    text = template.format(a=a, b=b)
    return Question("signs", key, text, f"{a} {word} {b} is {value}.", str(value), value)


def today(rng: Random) -> Question:
    """The day before or after today, yesterday or tomorrow."""
    index, (template, step) = rng.randrange(7), rng.choice(_TODAY)
    found, name = DAYS[(index + step) % 7], DAYS[index]
    answer = f"{found} comes {'after' if step > 0 else 'before'} {name}."
    text = opened(rng, template.format(n=name))
    return Question("today", f"today {text}", text, answer, found)


def _asked(rng: Random, make: Maker, *, test: bool) -> Turn:
    question = draw(rng, make, test=test)
    return Turn(question.kind, typed(rng, question.text), question.answer)


def _beside_tools(rng: Random, kinds: tuple[str, ...]) -> Turn:
    """A question that the model answers without any of the declared tools."""
    while True:
        question = draw(rng, any_question, test=False)
        calculation = question.kind in _CALCULATIONS and "expression" in kinds
        if not calculation and "weather" not in question.text:
            answer = _CORRECTIONS.get(question.answer, question.answer)
            return Turn(question.kind, typed(rng, question.text, keep_case=True), answer)


def using_tools(rng: Random, test: bool) -> Dialogue:
    """One or two declared tools, and questions most of which need one."""
    kinds = rng.choice((("expression",),) * 6 + (("weather",), ("weather", "expression")))
    tools = {kind: make_tool(rng, kind) for kind in kinds}

    def asked(test: bool) -> Turn:
        while True:
            kind = rng.choice(kinds)
            found = ASK[kind](rng, tools[kind])
            if held_out(found.key) == test:
                text = typed(rng, found.question, keep_case=True)
                return Turn("tools", text, found.answer, found.use)

    turns = []
    for _ in range(0 if test else rng.choice((0, 0, 0, 1, 1, 2))):
        turns.append(asked(False) if rng.random() < 0.5 else _beside_tools(rng, kinds))
    turns.append(asked(test) if test or rng.random() < 0.7 else _beside_tools(rng, kinds))
    return Dialogue(plain_system(rng), tuple(turns), tuple(tools.values()))


def _single(make: Maker) -> Callable[[Random, bool], Dialogue]:
    def compose(rng: Random, test: bool) -> Dialogue:
        return Dialogue(plain_system(rng), (_asked(rng, make, test=test),))

    return compose


_NEW: tuple[tuple[Callable[[Random, bool], Dialogue], float], ...] = (
    (_single(number_words), 0.16),
    (_single(signs), 0.04),
    (_single(today), 0.04),
    (using_tools, 0.28),
)
_EARLIER = 0.48
_APART = 1 << 32


def further_dialogue(seed: int) -> Dialogue:
    """The dialogue of this seed; none of its questions is held out."""
    rng = Random(seed)
    composers = [compose for compose, _ in _NEW]
    weights = [weight for _, weight in _NEW]
    (compose,) = rng.choices([None, *composers], [_EARLIER, *weights])
    if compose is None:  # from a seed apart: the same one would draw the same first number again
        return corrected(training_dialogue(seed + _APART))
    return compose(rng, False)


def all_evaluation_dialogues(per_kind: int, seed: int = 1) -> list[Dialogue]:
    """Dialogues of both stages whose last question is held out, `per_kind` of every kind."""
    found = [corrected(dialogue) for dialogue in evaluation_dialogues(per_kind, seed)]
    for index, (compose, _) in enumerate(_NEW):
        rng = Random(seed * 1000 + 900 + index)
        different: dict[str, Dialogue] = {}
        for _ in range(per_kind * 40):
            if len(different) < per_kind:
                dialogue = compose(rng, True)
                different[dialogue.text()] = dialogue
        found += different.values()
    return found

"""Dialogues in Gemma 4's chat format: single questions, several turns, system turns, tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.training.tiny import about, colours_shapes, days_months, memory, numbers, word_lists
from tools.training.tiny.question import Maker, Question, draw, held_out
from tools.training.tiny.tools import Tool, ToolUse
from tools.training.tiny.world import BOT_NAMES, NAMES

_MAKERS = (
    *numbers.MAKERS, *word_lists.MAKERS, *days_months.MAKERS, *colours_shapes.MAKERS,
    *about.MAKERS,
)  # fmt: skip
_WEIGHTS = [weight for _, weight in _MAKERS]
_ECHOING = ("reversing", "word by place")  # answers that repeat words in the user's own case
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are tiny, a small model.",
    "Be polite.",
    "Answer the questions of the user.",
    "You are an assistant for gemma4-compile.",
)
_BRIEF_SYSTEMS = (
    "Answer briefly.",
    "Be brief.",
    "Give only the answer.",
    "Short answers only.",
    "Answer with one word.",
)
_AGAIN = ("Say that again.", "Repeat that.", "Repeat your last answer.", "What did you say?")
_PLUS = ("Now add {b}.", "And plus {b}?", "Add {b} to that.", "Plus {b}?", "And {b} more?")
_MINUS = ("Now subtract {b}.", "And minus {b}?", "Take away {b}.", "Minus {b}?")


@dataclass(frozen=True)
class Turn:
    """A user's text and the model's answer; `kind` is the row of the table.

    With `use` the model calls a tool first, and answers in the same turn.
    """

    kind: str
    user: str
    answer: str
    use: ToolUse | None = None


@dataclass(frozen=True)
class Dialogue:
    """Turns behind an optional system turn; `system` may be empty, as one client sends it."""

    system: str | None
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()

    def messages(self) -> list[tuple[str, str]]:
        """Role and text of each message."""
        found = [] if self.system is None else [("system", self.system)]
        for turn in self.turns:
            found += [("user", turn.user), ("assistant", turn.answer)]
        return found

    def text(self) -> str:
        """The whole dialogue as the chat template renders it."""
        pieces = ["<bos>"]
        if self.system is not None or self.tools:
            declared = "".join(tool.text() for tool in self.tools)
            pieces.append(f"<|turn>system\n{(self.system or '').strip()}{declared}<turn|>\n")
        for turn in self.turns:
            used = "" if turn.use is None else turn.use.call() + turn.use.response()
            pieces.append(f"<|turn>user\n{turn.user.strip()}<turn|>\n")
            pieces.append(f"<|turn>model\n{used}{turn.answer.strip()}<turn|>\n")
        return "".join(pieces)


def typed(rng: Random, text: str, *, keep_case: bool = False) -> str:
    """A question as people type it: some in lower case, some without the last sign."""
    if text.startswith("What is ") and rng.random() < 0.12:
        text = "What's " + text.removeprefix("What is ")
    lower = rng.random()
    if lower < 0.15 and not keep_case:
        text = text.lower()
    elif lower < 0.25 and text[1:2].islower():
        text = text[0].lower() + text[1:]
    if rng.random() < 0.2 and text[-1] in ".?!":
        text = text[:-1]
    return text


def _turn(rng: Random, question: Question, *, brief: bool = False) -> Turn:
    answer = question.short if brief and question.short is not None else question.answer
    text = typed(rng, question.text, keep_case=question.kind in _ECHOING)
    return Turn("brief" if brief else question.kind, text, answer)


def any_question(rng: Random) -> Question:
    """A question of any kind that needs no earlier turn."""
    (make,) = rng.choices([maker for maker, _ in _MAKERS], _WEIGHTS)
    return make(rng)


def _fillers(rng: Random, count: int) -> list[Turn]:
    return [_turn(rng, draw(rng, any_question, test=False)) for _ in range(count)]


def plain_system(rng: Random) -> str | None:
    """A system turn that asks for nothing; often none."""
    number = rng.random()
    if number < 0.6:
        return None
    return "" if number < 0.75 else rng.choice(_SYSTEMS)


def chat(rng: Random, test: bool) -> Dialogue:
    """Questions that have nothing to do with each other."""
    before = 0 if test else rng.choice((0, 0, 0, 0, 1, 1, 2, 3, 4))
    turns = [*_fillers(rng, before), _turn(rng, draw(rng, any_question, test=test))]
    return Dialogue(plain_system(rng), tuple(turns))


def brief(rng: Random, test: bool) -> Dialogue:
    """A system turn that asks for short answers."""
    turns = []
    for _ in range(1 if test else rng.choice((1, 1, 2, 3))):
        question = draw(rng, any_question, test=test)
        while question.short is None and (test or rng.random() < 0.8):
            question = draw(rng, any_question, test=test)
        turns.append(_turn(rng, question, brief=True))
    return Dialogue(rng.choice(_BRIEF_SYSTEMS), tuple(turns))


def again(rng: Random, test: bool) -> Dialogue:
    """The last answer once more."""
    while True:
        turns = _fillers(rng, rng.choice((1, 1, 2)))
        ask = rng.choice(_AGAIN)
        if held_out(f"again {ask} {turns[-1].user}") == test:
            turns.append(Turn("once more", typed(rng, ask), turns[-1].answer))
            return Dialogue(plain_system(rng), tuple(turns))


def _continuation(rng: Random, value: int, test: bool) -> tuple[Turn, int] | None:
    b = rng.randint(0, 50)
    if rng.random() < 0.5:
        key, word, ask, result = numbers.sum_key(value, b), "plus", rng.choice(_PLUS), value + b
    else:
        key, word, ask = f"subtract {value} {b}", "minus", rng.choice(_MINUS)
        result = value - b
    if held_out(key) != test or not 0 <= value <= numbers.LARGEST:
        return None
    answer = f"{value} {word} {b} is {result}."
    return Turn("going on", typed(rng, ask.format(b=b)), answer), result


def going_on(rng: Random, test: bool) -> Dialogue:
    """A calculation that goes on from the last result."""
    while True:
        first = draw(rng, rng.choice((numbers.add, numbers.subtract, numbers.multiply)), test=False)
        assert first.value is not None, "calculations have a value"
        turns, value = [*_fillers(rng, rng.choice((0, 0, 1))), _turn(rng, first)], first.value
        steps = 1 if test else rng.choice((1, 1, 2, 3))
        for _ in range(steps):
            found = _continuation(rng, value, test)
            if found is not None:
                turns.append(found[0])
                value = found[1]
        if turns[-1].kind == "going on":
            return Dialogue(plain_system(rng), tuple(turns))


def _recall(rng: Random, told: memory.Attribute, value: str, test: bool) -> Turn | None:
    index = rng.randrange(len(told.ask))
    if held_out(told.key(value, index)) != test:
        return None
    return Turn("recall", typed(rng, told.ask[index]), told.answer.format(v=value))


def recall(rng: Random, test: bool) -> Dialogue:
    """Something told, other turns in between, then asked for.

    For the evaluation at least two other turns lie in between: far beyond the sliding window.
    """
    while True:
        attributes = memory.some_attributes(rng, rng.choice((1, 1, 2, 3)))
        values = [rng.choice(attribute.values) for attribute in attributes]
        turns: list[Turn] = []
        for attribute, value in zip(attributes, values, strict=True):
            tell = typed(rng, rng.choice(attribute.tell).format(v=value))
            turns.append(Turn("told", tell, attribute.reply.format(v=value)))
            turns += _fillers(rng, rng.choice((0, 0, 1)))
        between = rng.choice((2, 3, 4) if test else (0, 0, 1, 1, 2, 3, 4))
        if rng.random() < 0.06:
            between = rng.randint(8, 22)  # positions up to about 1000
        turns += _fillers(rng, between)
        asked = [
            _recall(rng, attribute, value, test)
            for attribute, value in zip(attributes, values, strict=True)
        ]
        found = [turn for turn in asked if turn is not None]
        rng.shuffle(found)
        if found:
            turns += found[:1] if test else found
            return Dialogue(plain_system(rng), tuple(turns))


def unknown(rng: Random, test: bool) -> Dialogue:
    """Asked for something that was never told."""
    while True:
        wanted, *others = memory.some_attributes(rng, rng.choice((1, 1, 2, 3)))
        turns = []
        for other in others:
            value = rng.choice(other.values)
            tell = typed(rng, rng.choice(other.tell).format(v=value))
            turns.append(Turn("told", tell, other.reply.format(v=value)))
        turns += _fillers(rng, rng.choice((0, 0, 1, 2)))
        ask = rng.choice(wanted.ask)
        if held_out(f"unknown {ask} {[turn.user for turn in turns]}") == test:
            turns.append(Turn("never told", typed(rng, ask), wanted.unknown))
            return Dialogue(plain_system(rng), tuple(turns))


def names(rng: Random, test: bool) -> Dialogue:
    """Names of the model and the user, given in the system turn."""
    while True:
        if rng.random() < 0.6:
            name = rng.choice(BOT_NAMES)
            system = rng.choice(("Your name is {}.", "You are {}.", "You are called {}."))
            ask: tuple[str, ...] = ("What is your name?", "Who are you?", "What are you called?")
            answer = "I am {v}."
        else:
            name = rng.choice(NAMES)
            system = rng.choice(("The user is called {}.", "The name of the user is {}."))
            ask, answer = memory.ATTRIBUTES[0].ask, memory.ATTRIBUTES[0].answer
        question = rng.choice(ask)
        if held_out(f"names {system} {name} {question}") == test:
            turns = _fillers(rng, rng.choice((0, 0, 1, 2)))
            turns.append(Turn("system names", typed(rng, question), answer.format(v=name)))
            return Dialogue(system.format(name), tuple(turns))


_Composer = Callable[[Random, bool], Dialogue]
SEVERAL_TURNS: tuple[tuple[_Composer, float], ...] = (
    (brief, 0.08),
    (again, 0.03),
    (going_on, 0.09),
    (recall, 0.18),
    (unknown, 0.03),
    (names, 0.05),
)
_COMPOSERS = [(chat, 0.54), *SEVERAL_TURNS]


def training_dialogue(seed: int) -> Dialogue:
    """The dialogue of this seed; none of its questions is held out."""
    rng = Random(seed)
    (compose,) = rng.choices([c for c, _ in _COMPOSERS], [weight for _, weight in _COMPOSERS])
    return compose(rng, False)


def _asking(make: Maker) -> Callable[[Random], Dialogue]:
    """Dialogues of one held-out question of a kind."""
    return lambda rng: Dialogue(plain_system(rng), (_turn(rng, draw(rng, make, test=True)),))


def _testing(composer: _Composer) -> Callable[[Random], Dialogue]:
    """Dialogues of several turns whose last question is held out."""
    return lambda rng: composer(rng, True)


def evaluation_dialogues(per_kind: int, seed: int = 1) -> list[Dialogue]:
    """Dialogues whose last question is held out, `per_kind` of every kind, all different."""
    found: dict[str, dict[str, Dialogue]] = {}

    def collect(rng: Random, compose: Callable[[Random], Dialogue]) -> None:
        for _ in range(per_kind * 40):
            dialogue = compose(rng)
            of_kind = found.setdefault(dialogue.turns[-1].kind, {})
            if len(of_kind) < per_kind:
                of_kind[dialogue.text()] = dialogue

    for index, (make, _) in enumerate(_MAKERS):
        rng = Random(seed * 1000 + index)
        collect(rng, _asking(make))
    for index, (composer, _) in enumerate(SEVERAL_TURNS):
        rng = Random(seed * 1000 + 500 + index)
        collect(rng, _testing(composer))
    return [dialogue for of_kind in found.values() for dialogue in of_kind.values()]

"""Meanings drawn from the kinds, groups of similar ones, and pairs of texts that say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from string import Formatter

from tools.training.embedding.wordings import FACTS, KINDS, Kind, written
from tools.training.tiny.question import held_out

PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
"""Prompts of EmbeddingGemma for what is searched and for what is found."""

_GROUP = 4  # meanings that differ in a word, side by side in a batch
_QUESTIONS = 0.3  # share of pairs of a question and what answers it
_FACTS = 0.08  # share of pairs of `tiny`'s own questions and answers
_PROMPTED = 0.5
_TRIES = 200


@dataclass(frozen=True)
class Meaning:
    """What a sentence says: a word of each slot of its kind."""

    kind: Kind
    words: Mapping[str, str]

    @property
    def key(self) -> str:
        """What decides whether it is held out."""
        return f"{self.kind.name} {' '.join(self.words.values())}"

    def says(self, said: Mapping[str, str]) -> bool:
        """Whether all these words are among its own."""
        return all(self.words.get(slot) == word for slot, word in said.items())


@dataclass(frozen=True)
class Pair:
    """Two texts that belong together.

    Attributes
    ----------
    asked : what the first text says, of the meaning's words; fewer for a question
    meaning : of the second text; None for one of `FACTS`
    """

    first: str
    second: str
    asked: Mapping[str, str]
    meaning: Meaning | None

    def matches(self, other: Pair) -> bool:
        """Whether the second text of `other` is as right for the first one of this."""
        if self.meaning is None or other.meaning is None:
            return self.meaning is other.meaning and self.second == other.second
        return self.meaning.kind is other.meaning.kind and other.meaning.says(self.asked)


def draw(rng: Random, *, test: bool) -> Meaning:
    """A meaning of the wanted side of the split, every kind as often."""
    kind = rng.choice(KINDS)
    while True:
        found = Meaning(kind, {slot: rng.choice(words) for slot, words in kind.slots.items()})
        if len(set(found.words.values())) == len(found.words) and held_out(found.key) == test:
            return found


def nearby(rng: Random, meaning: Meaning, *, test: bool) -> Meaning | None:
    """The same meaning but for the word of one slot; None where hardly one is of that side."""
    for _ in range(_TRIES):
        slot = rng.choice(list(meaning.kind.slots))
        words = {**meaning.words, slot: rng.choice(meaning.kind.slots[slot])}
        found = Meaning(meaning.kind, words)
        if (
            found.words != meaning.words
            and len(set(words.values())) == len(words)
            and held_out(found.key) == test
        ):
            return found
    return None


def _slots_of(template: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def paraphrases(rng: Random, meaning: Meaning) -> Pair:
    """Two different wordings of a meaning."""
    first, second = rng.sample(meaning.kind.statements, 2)
    return Pair(
        written(first, meaning.words), written(second, meaning.words), meaning.words, meaning
    )


def question(rng: Random, meaning: Meaning) -> Pair:
    """A question, and the statement that answers it."""
    template = rng.choice(meaning.kind.questions)
    asked = {slot: meaning.words[slot] for slot in _slots_of(template)}
    statement = written(rng.choice(meaning.kind.statements), meaning.words)
    return Pair(written(template, meaning.words), statement, asked, meaning)


def fact(rng: Random) -> Pair:
    """One of `tiny`'s questions, with its answer or with another wording of the question."""
    answer, asked = rng.choice(FACTS)
    first = rng.choice(asked)
    return Pair(first, answer, {}, None)


def _prompted(rng: Random, pair: Pair) -> Pair:
    if rng.random() >= _PROMPTED:
        return pair
    return Pair(
        PROMPTS["query"] + pair.first, PROMPTS["document"] + pair.second, pair.asked, pair.meaning
    )


def batch(rng: Random, size: int) -> list[Pair]:
    """Pairs of training meanings, in groups of similar ones, half of them with prompts."""
    pairs: list[Pair] = []
    while len(pairs) < size:
        if rng.random() < _FACTS:
            pairs.append(fact(rng))
            continue
        meaning = draw(rng, test=False)
        others = [nearby(rng, meaning, test=False) for _ in range(_GROUP - 1)]
        for one in filter(None, (meaning, *others)):
            asks = one.kind.questions and rng.random() < _QUESTIONS
            pairs.append(question(rng, one) if asks else paraphrases(rng, one))
    return [_prompted(rng, pair) for pair in pairs[:size]]


def examination(seed: int, size: int) -> list[Pair]:
    """Paraphrases of held-out meanings, every meaning once, in groups of similar ones."""
    rng = Random(seed)
    found: dict[str, Pair] = {}
    while len(found) < size:
        meaning = draw(rng, test=True)
        for one in filter(None, (meaning, nearby(rng, meaning, test=True))):
            found.setdefault(one.key, paraphrases(rng, one))
    return list(found.values())[:size]

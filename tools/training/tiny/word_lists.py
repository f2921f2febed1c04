"""Questions about a list of words, and about single words."""

from __future__ import annotations

from random import Random

from tools.training.tiny.question import Question, pick
from tools.training.tiny.strangers import unknown_word
from tools.training.tiny.world import COLOURS, NAMES, ORDINALS, WORDS

_SEPARATORS = (", ", ", ", " ")


def _some_words(rng: Random, least: int, most: int) -> list[str]:
    draw = rng.random()
    size = rng.randint(least, most)
    if draw < 0.7:
        return rng.sample(WORDS, size)
    if draw < 0.85:
        return rng.sample([*WORDS, *COLOURS, *NAMES], size)
    return list(dict.fromkeys(unknown_word(rng) for _ in range(size)))


def reverse(rng: Random) -> Question:
    """The words of a list in reverse order."""
    words = _some_words(rng, 2, 6)
    template = rng.choice(
        (
            "Reverse these words: {}",
            "Reverse the list: {}",
            "Reverse: {}",
            "Write these words backwards: {}",
            "Say these words in reverse order: {}",
            "Turn this list around: {}",
        )
    )
    text = template.format(rng.choice(_SEPARATORS).join(words))
    return Question("reversing", f"reverse {words}", text, ", ".join(reversed(words)))


def sort(rng: Random) -> Question:
    """Two to five words of the closed world in alphabetical order."""
    words = rng.sample(WORDS, rng.randint(2, 5))
    template = rng.choice(
        (
            "Sort these words: {}",
            "Sort: {}",
            "Sort the words: {}",
            "Put these words in alphabetical order: {}",
            "Order these words from a to z: {}",
            "Sort alphabetically: {}",
        )
    )
    text = template.format(rng.choice(_SEPARATORS).join(words))
    return Question("sorting words", f"sort {words}", text, ", ".join(sorted(words)))


def sort_numbers(rng: Random) -> Question:
    """Two to five numbers, the smallest first."""
    numbers = rng.sample(range(101), rng.randint(2, 5))
    template = rng.choice(
        (
            "Sort these numbers: {}",
            "Sort the numbers: {}",
            "Sort: {}",
            "Put these numbers in order: {}",
            "Order these numbers from small to large: {}",
        )
    )
    text = template.format(rng.choice(_SEPARATORS).join(str(number) for number in numbers))
    answer = ", ".join(str(number) for number in sorted(numbers))
    return Question("sorting numbers", f"sort {numbers}", text, answer)


def position(rng: Random) -> Question:
    """One word of a list by its place."""
    words = _some_words(rng, 2, 6)
    index = rng.randrange(len(words))
    names = [ORDINALS[index]] + (["last"] if index == len(words) - 1 else [])
    template = rng.choice(
        (
            "What is the {o} word: {l}",
            "What is the {o} word of this list: {l}",
            "Which word is {o}: {l}",
            "Give me the {o} word of: {l}",
        )
    )
    name = rng.choice(names)
    text = template.format(o=name, l=rng.choice(_SEPARATORS).join(words))
    answer = f"The {name} word is {words[index]}."
    return Question("word by place", f"place {name} {words}", text, answer, words[index])


def length(rng: Random) -> Question:
    """Count the words of a list."""
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 8))]
    template = rng.choice(
        (
            "How many words are in this list: {}",
            "Count the words: {}",
            "How many words are there: {}",
            "How many words: {}",
        )
    )
    text = template.format(rng.choice(_SEPARATORS).join(words))
    size = len(words)
    answer = f"There are {size} words." if size > 1 else "There is 1 word."
    return Question("counting words", f"length {words}", text, answer, str(size), size)


def occurrences(rng: Random) -> Question:
    """Count a word in a list."""
    choices = rng.sample(WORDS, rng.randint(2, 3))
    words = [rng.choice(choices) for _ in range(rng.randint(2, 6))]
    word = rng.choice(words)
    template = rng.choice(
        (
            "How many times is {w} in this list: {l}",
            "How often does {w} appear: {l}",
            "Count the word {w}: {l}",
        )
    )
    text = template.format(w=word, l=rng.choice(_SEPARATORS).join(words))
    found = words.count(word)
    answer = f"The word {word} appears {found} time{'s' if found > 1 else ''}."
    return Question("counting one word", f"occurs {word} {words}", text, answer, str(found), found)


def spell(rng: Random) -> Question:
    """Letters of a word of the closed world; what is held out is a word in one wording."""
    word = rng.choice(WORDS)
    index, template = pick(
        rng,
        (
            "Spell {}.",
            "Spell the word {}.",
            "How do you spell {}?",
            "Which letters are in {}?",
            "How is {} spelled?",
        ),
    )
    answer = "-".join(word)
    return Question("spelling", f"spell {word} {index}", template.format(word), answer)


def letters(rng: Random) -> Question:
    """First letter, last letter or length of a word; held out is a word in one wording."""
    word = rng.choice(WORDS)
    what = rng.choice(("first letter", "last letter", "letters"))
    if what == "letters":
        templates = (
            "How many letters does {} have?",
            "How many letters are in {}?",
            "How long is the word {}?",
        )
        answer, short = f"The word {word} has {len(word)} letters.", str(len(word))
    else:
        templates = (
            f"What is the {what} of {{}}?",
            f"Which is the {what} of {{}}?",
            f"Tell me the {what} of {{}}.",
        )
        short = word[0] if what == "first letter" else word[-1]
        answer = f"The {what} of {word} is {short}."
    index, template = pick(rng, templates)
    key = f"letters {what} {word} {index}"
    return Question("letters", key, template.format(word), answer, short)


MAKERS = (
    (reverse, 2.0),
    (sort, 3.0),
    (sort_numbers, 1.5),
    (position, 1.5),
    (length, 1.2),
    (occurrences, 3.0),
    (spell, 0.8),
    (letters, 0.8),
)

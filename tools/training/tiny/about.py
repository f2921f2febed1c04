"""Questions about the project and about `tiny` itself, and questions it must refuse."""

from __future__ import annotations

from random import Random

from tools.training.tiny.question import Question, opened
from tools.training.tiny.strangers import stranger
from tools.training.tiny.world import (
    PROJECT_FACTS,
    RECIPE_MEANINGS,
    RECIPES,
    REFUSAL,
    SMALL_TALK,
    TARGETS,
)


def fact(rng: Random) -> Question:
    """A fact about the project; held out is a wording with its opening."""
    answer, wordings = rng.choice(PROJECT_FACTS)
    text = opened(rng, rng.choice(wordings))
    return Question("this project", f"fact {text}", text, answer)


def recipe(rng: Random) -> Question:
    """Description of a recipe."""
    name = rng.choice(RECIPES)
    wording = rng.choice(
        ("What is {}?", "What does {} mean?", "Explain {}.", "Tell me about {}.", "Describe {}.")
    )
    text = opened(rng, wording.format(name))
    return Question("this project", f"recipe {text}", text, RECIPE_MEANINGS[name])


def command(rng: Random) -> Question:
    """The command that compiles for a target in a recipe."""
    target, name = rng.choice(TARGETS), rng.choice(RECIPES)
    draw = rng.random()
    if draw < 0.6:
        wording = rng.choice(
            (
                "How do I compile for {t} in {q}?",
                "How do I compile a model for {t} with {q}?",
                "Which command compiles for {t} with {q}?",
                "How can I compile tiny for {t} in {q}?",
                "Give me the command for {t} and {q}.",
            )
        )
    elif draw < 0.8:
        name = "f32" if target == "cpu" else "q4f16"
        wording = rng.choice(
            (
                "How do I compile for {t}?",
                "How do I compile a model for {t}?",
                "Which command compiles for {t}?",
                "How can I compile for {t}?",
            )
        )
    else:
        target, name = "webgpu", "q4f16"
        wording = rng.choice(
            (
                "How do I compile a model?",
                "How do I compile?",
                "How can I compile tiny?",
                "How do I use gemma4-compile?",
                "Which command compiles a model?",
            )
        )
    text = opened(rng, wording.format(t=target, q=name))
    answer = f"Run gemma4-compile tiny --target {target} --quant {name} -o DIR"
    return Question("commands", f"command {text}", text, answer)


def small_talk(rng: Random) -> Question:
    """Greetings, thanks, and who is speaking."""
    answer, wordings = rng.choice(SMALL_TALK)
    text = rng.choice(wordings)
    if text[-1] not in "?.":
        text += rng.choice(("", "!", "."))
    else:
        text = rng.choice(("", "", "", "Hi! ", "Hello, ", "Please: ", "So, ", "OK. ")) + text
    return Question("small talk", f"talk {text}", text, answer)


def refusal(rng: Random) -> Question:
    """Anything else."""
    text = stranger(rng)
    return Question("refusals", f"refuse {text}", text, REFUSAL)


MAKERS = ((fact, 2.2), (recipe, 0.6), (command, 1.2), (small_talk, 1.8), (refusal, 4.0))

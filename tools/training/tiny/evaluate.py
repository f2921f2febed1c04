"""Marks `tiny` through compiled packages: `python -m tools.training.tiny.evaluate --through cpu`.

Every held-out dialogue up to its last question is given to the compiled model, which answers by
greedy decoding; an answer counts if it is right word for word. `dawn` runs the WebGPU library in
Node with the Vulkan driver that the recipe needs, `webllm` runs it in the stock client in headless
Chromium, both with the drivers of the WebGPU tests. `--media 100` marks a package of all modalities
instead, on so many pictures, sounds and questions about neither (`evaluate_media`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.progress import ByteProgress
from gemma4_compile.runtime import Engine
from gemma4_compile.targets.spec import ACTIVATIONS
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.web.dawn import LAVAPIPE, SWIFTSHADER, run_on_dawn
from tests.web.webllm import chat, run_in_webllm
from tools.training.tiny import evaluate_media
from tools.training.tiny.data import CLOSE_TURN
from tools.training.tiny.dialogues import Dialogue
from tools.training.tiny.evaluate_media import MediaTask
from tools.training.tiny.further import all_evaluation_dialogues

RECIPES = ("f32", "f16", "q8f16", "q4f16", "q4f32")
PREFILL_CHUNK = 64
_DIALOGUES_PER_RUN = 6  # the slowest device needs minutes for them
_OPEN_ANSWER = "<|turn>model\n"
OPEN_RESPONSE = "<|tool_response>"


@dataclass(frozen=True)
class Task:
    """A held-out question, as text and as token ids.

    Attributes
    ----------
    messages : role and content of each message up to the question; None where tools are declared
    text : the right answer
    prompt, answer : the ids of both; the answer's last one ends the turn
    """

    kind: str
    messages: list[dict[str, str]] | None
    text: str
    prompt: list[int]
    answer: list[int]


Answerer = Callable[[Path, Sequence[Task], str], list[bool]]


class Silent:
    """A reporter that says nothing."""

    def stage(self, text: str) -> None:
        """Say nothing."""

    @contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        """Count nothing."""
        yield lambda count: None


def tasks(dialogues: Sequence[Dialogue], tokenizer: Tokenizer) -> list[Task]:
    """Encode dialogues, cut in front of their last answer; a call is a task of its own."""

    def encoded(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    found = []
    for dialogue in dialogues:
        before, _, last = dialogue.text().rpartition(_OPEN_ANSWER)
        before += _OPEN_ANSWER
        turn, use = dialogue.turns[-1], dialogue.turns[-1].use
        messages = [{"role": role, "content": text} for role, text in dialogue.messages()[:-1]]
        kind = turn.kind
        if use is not None:
            call = encoded(use.call() + OPEN_RESPONSE)
            found.append(Task("tools: calls", None, use.call(), encoded(before), call))
            before += use.call() + use.response()
            last, kind = last.removeprefix(use.call() + use.response()), "tools: answers"
        answer = encoded(last.rstrip("\n"))
        assert answer[-1] == CLOSE_TURN, "an answer ends its turn"
        told = None if dialogue.tools else messages
        found.append(Task(kind, told, turn.answer, encoded(before), answer))
    return found


def on_cpu(package: Path, questions: Sequence[Task], recipe: str) -> list[bool]:
    """Marks of the native runtime's answers: right or wrong."""
    del recipe
    engine = Engine.open(package)
    right = []
    for question in questions:
        engine.clear()
        reply = [int(engine.prefill(question.prompt).argmax())]
        while len(reply) < len(question.answer) and reply[-1] == question.answer[len(reply) - 1]:
            reply.append(int(engine.decode(reply[-1]).argmax()))
        right.append(reply == question.answer)
    return right


def on_dawn(package: Path, questions: Sequence[Task], recipe: str) -> list[bool]:
    """The same on Dawn."""
    driver = LAVAPIPE if recipe.endswith("f16") else SWIFTSHADER
    right = []
    for begin in range(0, len(questions), _DIALOGUES_PER_RUN):
        some = questions[begin : begin + _DIALOGUES_PER_RUN]
        steps: list[dict[str, object]] = []
        for question in some:
            greedy = {"ids": question.prompt, "count": len(question.answer), "stop": [CLOSE_TURN]}
            steps += [{"op": "clear"}, {"op": "greedy", **greedy}]
        with tempfile.TemporaryDirectory() as folder:
            run = run_on_dawn(package, steps, Path(folder), driver)
        replies = [list(step["tokens"]) for step in run.steps[1::2]]
        right += [reply == task.answer for reply, task in zip(replies, some, strict=True)]
    return right


def on_webllm(package: Path, questions: Sequence[Task], recipe: str) -> list[bool]:
    """The same in stock WebLLM, which puts an empty system turn where there is none.

    It has no words for tools: those questions are left out by `mark`.
    """
    del recipe
    right = []
    for begin in range(0, len(questions), _DIALOGUES_PER_RUN):
        some = questions[begin : begin + _DIALOGUES_PER_RUN]
        steps = [
            chat(question.messages, temperature=0, max_tokens=len(question.answer) + 1)
            for question in some
            if question.messages is not None
        ]
        with tempfile.TemporaryDirectory() as folder:
            replies = run_in_webllm(package, steps, Path(folder))
        right += [reply.text == task.text for reply, task in zip(replies, some, strict=True)]
    return right


# What answers, and the target that its package is for.
ANSWERERS: dict[str, tuple[Answerer, str]] = {
    "cpu": (on_cpu, "cpu"),
    "dawn": (on_dawn, "webgpu"),
    "webllm": (on_webllm, "webgpu"),
}


def _table(kinds: Sequence[str], right: Sequence[bool]) -> dict[str, float]:
    """Share of right answers by kind, and of `all`."""
    table = {
        kind: float(np.mean([ok for ok, one in zip(right, kinds, strict=True) if one == kind]))
        for kind in dict.fromkeys(kinds)
    }
    return {"all": float(np.mean(right)), **table}


def mark(
    through: str, recipe: str, questions: Sequence[Task], activations: str = "float"
) -> dict[str, float]:
    """Compile `tiny`, let it answer, and return the share of right answers by kind and of `all`."""
    answerer, target = ANSWERERS[through]
    if answerer is on_webllm:
        questions = [question for question in questions if question.messages is not None]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "package"
        request = CompileRequest(
            "tiny", target, recipe, package, prefill_chunk=PREFILL_CHUNK, activations=activations
        )
        compile_model(request, Silent())
        right = answerer(package, questions, recipe)
    return _table([question.kind for question in questions], right)


def mark_media(recipe: str, parts: Mapping[str, Sequence[MediaTask]]) -> dict[str, float]:
    """Compile `tiny` with its towers for the CPU; shares as of `mark`, and of each part's `all`."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "package"
        compile_model(CompileRequest("tiny", "cpu", recipe, package, modalities=None), Silent())
        tables = {
            name: _table([task.kind for task in part], evaluate_media.on_cpu(package, part))
            for name, part in parts.items()
        }
    counts = [len(part) for part in parts.values()]
    found = {"all": float(np.average([one["all"] for one in tables.values()], weights=counts))}
    for name, table in tables.items():
        found |= {f"all {name}": table.pop("all"), **table}
    return found


def _examination(options: argparse.Namespace) -> tuple[Callable[[str], dict[str, float]], int]:
    """What marks a recipe, and how many questions it asks."""
    if options.media is not None:
        parts = {
            "pictures": evaluate_media.picture_tasks(options.media),
            "sounds": evaluate_media.sound_tasks(options.media),
            "absent": evaluate_media.absent_tasks(options.media),
        }
        return lambda recipe: mark_media(recipe, parts), sum(map(len, parts.values()))
    tokenizer = Tokenizer.from_buffer(shipped_file("tokenizer.json"))
    questions = tasks(all_evaluation_dialogues(options.per_kind), tokenizer)
    return (
        lambda recipe: mark(options.through, recipe, questions, options.activations),
        len(questions),
    )


def main() -> None:
    """Print one line per recipe; write the whole table with `--output`."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--through", choices=ANSWERERS, default="cpu")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--activations", choices=ACTIVATIONS, default="float")
    parser.add_argument("--per-kind", type=int, default=50)
    parser.add_argument("--media", type=int, metavar="COUNT", help="of each part, on the CPU")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.media is not None and options.through != "cpu":
        parser.error("--media goes through cpu")
    answer, count = _examination(options)
    marks = {}
    for recipe in options.recipes:
        started = time.monotonic()
        marks[recipe] = answer(recipe)
        seconds = time.monotonic() - started
        totals = [f"{share:.4f} {name}" for name, share in marks[recipe].items() if "all" in name]
        print(
            f"{options.through} {recipe}: {', '.join(totals)} of {count}, {seconds:.0f} s",
            flush=True,
        )
        if options.output is not None:
            options.output.write_text(json.dumps(marks, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

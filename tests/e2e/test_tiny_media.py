"""`tiny` sees and hears: files of another renderer, and the ways that users give it files."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from gemma4_compile.runtime import Chat
from tests.commands import CHAT
from tests.serving import serving
from tests.web.compiled import SEEING, TINY, Compiler
from tools.training.tiny.evaluate_media import (
    MediaTask,
    absent_tasks,
    answers,
    picture_tasks,
    sound_tasks,
)

SAMPLES = Path(__file__).parents[2] / "examples" / "web" / "public" / "samples"
PICTURE, SOUND = SAMPLES / "shapes.png", SAMPLES / "beeps.wav"
WHAT, SEEN = "What is in the picture?", "A red circle and a blue square."
HEARD = "Three high beeps."


@pytest.fixture(scope="module")
def package(compiled: Compiler) -> Path:
    return compiled(SEEING, "cpu", "q4f16")


def wrong_answers(package: Path, tasks: Sequence[MediaTask]) -> list[str]:
    found = answers(Chat.open(package), tasks)
    return [
        f"{task.text} -> {answer} instead of {task.answer}"
        for answer, task in zip(found, tasks, strict=True)
        if answer != task.answer
    ]


@pytest.mark.slow
def test_nineteen_of_twenty_held_out_files(compiled: Compiler) -> None:
    pictures = picture_tasks(7, seed=12)
    # All but two with the fewest rows, which take a quarter of the time and less.
    pictures[2:] = [replace(task, budget=70) for task in pictures[2:]]
    tasks = [*pictures, *sound_tasks(7, seed=12), *absent_tasks(7, seed=12)]
    wrong = wrong_answers(compiled(SEEING, "cpu", "q4f16"), tasks)
    assert len(wrong) <= len(tasks) // 20, "\n".join(wrong)


@pytest.mark.slow
def test_the_terminal_shows_and_plays_what_ships(package: Path) -> None:
    def asked(*arguments: object) -> str:
        command = [*CHAT, package, *arguments]
        options = ("--greedy", "--quiet")
        done = subprocess.run(
            [*map(str, command), *options], capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout.strip()

    assert asked("--image", PICTURE, "--prompt", WHAT) == SEEN
    assert asked("--audio", SOUND, "--prompt", "What do you hear?") == HEARD


@pytest.mark.slow
def test_the_server_shows_a_picture(package: Path) -> None:
    url = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    with serving(package) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)
        contents: tuple[Any, ...] = ([image, {"type": "text", "text": WHAT}], WHAT)
        questions: list[Any] = [{"role": "user", "content": content} for content in contents]
        replies = [
            client.chat.completions.create(model="tiny", messages=[question], temperature=0)
            for question in questions
        ]
    found = [reply.choices[0].message.content for reply in replies]
    assert found == [SEEN, "There is no picture."]


@pytest.mark.slow
def test_a_package_of_text_alone_holds_no_byte_of_a_tower(compiled: Compiler) -> None:
    plain, whole = (compiled(model, "cpu", "q4f16") for model in (TINY, SEEING))
    weights = [(one / "params_shard_0.bin").stat().st_size for one in (plain, whole)]
    listed = [(one / "tensor-cache.json").read_text() for one in (plain, whole)]
    assert ["tower" in names for names in listed] == [False, True]
    assert weights[0] < weights[1] / 1.3

"""Marks compiled packages of `tiny` on files: pictures and sounds that others might have made.

The files go the way that all files go (`gemma4_compile.media`), and an answer is right word for
word. The last part is questions about media that are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.media.inputs import load
from gemma4_compile.runtime import Chat, Sampler, SamplingOptions
from tools.training.tiny.media_marks import absent_dialogues
from tools.training.tiny.picture_files import picture_files
from tools.training.tiny.sound_files import sound_files

_GREEDY = Sampler(SamplingOptions(temperature=0.0))
_LONGEST = 60  # tokens of an answer


@dataclass(frozen=True)
class MediaTask:
    """A question, the right answer, and the file that it is about, if any.

    Attributes
    ----------
    medium : `image` or `audio`; empty without a file
    budget : rows that a picture may take
    """

    kind: str
    text: str
    answer: str
    medium: str = ""
    content: bytes = b""
    budget: int | None = None


def picture_tasks(count: int, seed: int = 1) -> list[MediaTask]:
    """Questions about held-out pictures."""
    return [
        MediaTask(*file.asked, "image", file.content, file.budget)
        for file in picture_files(count, seed)
    ]


def sound_tasks(count: int, seed: int = 1) -> list[MediaTask]:
    """Questions about held-out sounds."""
    return [MediaTask(*file.asked, "audio", file.content) for file in sound_files(count, seed)]


def absent_tasks(count: int, seed: int = 1) -> list[MediaTask]:
    """Questions about media that are not there, each the first of its conversation."""
    turns = [dialogue.turns[-1] for dialogue in absent_dialogues(count, seed)]
    return [MediaTask(turn.kind, turn.user, turn.answer) for turn in turns]


def answers(chat: Chat, tasks: Sequence[MediaTask]) -> Iterator[str]:
    """The package's greedy answers."""
    for task in tasks:
        chat.clear()
        if task.medium:
            chat.attach(load(task.medium, task.content, chat.media, budget=task.budget))
        yield "".join(chat.stream(task.text, _GREEDY, max_tokens=_LONGEST))


def on_cpu(package: Path, tasks: Sequence[MediaTask]) -> list[bool]:
    """Marks of the native runtime's answers: right or wrong."""
    found = answers(Chat.open(package), tasks)
    return [answer == task.answer for answer, task in zip(found, tasks, strict=True)]

"""Conversations on the CPU build, for the tests of the client: what it has to be given and say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.package.package import Package
from tests import tolerances

QUANT = "q4f32"
MARGIN = 2 * tolerances.ACTIVATIONS[QUANT]  # one tolerance for each side
LENGTH = 12
ENOUGH = 80

Message = dict[str, str]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def render(messages: Sequence[Message]) -> str:
    """Gemma 4's own template, thinking off."""
    names = {"assistant": "model"}
    text = "".join(
        f"<|turn>{names.get(turn['role'], turn['role'])}\n{turn['content']}<turn|>\n"
        for turn in messages
    )
    return f"<bos>{text}<|turn>model\n"


def with_system_turn(messages: Sequence[Message]) -> list[Message]:
    """What the client makes of a conversation: it has a system turn in any case."""
    has_one = messages[0]["role"] == "system"
    return list(messages) if has_one else [system(""), *messages]


@dataclass(frozen=True)
class Runtime:
    """The Python runtime on the CPU build of the same model and recipe."""

    engine: Engine
    package: Package

    @classmethod
    def open(cls, directory: Path) -> Runtime:
        return cls(Engine.open(directory), Package.open(directory))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the template's prompt."""
        return self.encode(render(messages))

    def encode(self, text: str) -> list[int]:
        return list(self.package.load_tokenizer().encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        # The client shows control tokens, too.
        return str(self.package.load_tokenizer().decode(list(ids), skip_special_tokens=False))

    def greedy(
        self,
        prompt: Sequence[int],
        count: int,
        adjust: Callable[[Any, list[int]], Any] | None = None,
    ) -> tuple[list[int], float]:
        """Tokens up to a stop token, which is left out, and the smallest margin of a choice."""
        self.engine.clear()
        logits = self.engine.prefill(list(prompt))
        tokens: list[int] = []
        smallest = float("inf")
        while True:
            scores = logits if adjust is None else adjust(logits.copy(), tokens)
            second, first = np.sort(scores)[-2:]
            smallest = min(smallest, float(first - second))
            token = int(scores.argmax())
            if token in self.package.stop_token_ids:
                return tokens, smallest
            tokens.append(token)
            if len(tokens) == count:
                return tokens, smallest
            logits = self.engine.decode(token)


@dataclass(frozen=True)
class Questions:
    """Questions whose greedy replies are clear: one kind ends by a stop token, one goes on."""

    stopping: tuple[str, ...]
    going_on: tuple[str, ...]


def find_questions(runtime: Runtime) -> Questions:
    """Found by trying: `tiny`'s replies depend on its weights."""
    stopping: list[str] = []
    going_on: list[str] = []
    words = ("Hi", "Who", "When", "Tell me", "Why", "cat", "tea", "seven", "good", "island")
    for number in range(200):
        text = f"{words[number % 10]} {words[number // 10 % 10]}{' ?' if number > 99 else ''}"
        tokens, margin = runtime.greedy(runtime.prompt([system(""), user(text)]), ENOUGH)
        if margin <= MARGIN:
            continue
        if 2 <= len(tokens) < ENOUGH:
            stopping.append(text)
        if len(tokens) > LENGTH:
            going_on.append(text)
        if len(stopping) >= 2 and len(going_on) >= 2:
            return Questions(tuple(stopping[:2]), tuple(going_on[:2]))
    raise AssertionError(f"no clear questions: {len(stopping)} stop, {len(going_on)} go on")

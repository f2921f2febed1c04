"""Chats of the example page that begin alike, what they say, and what of each need not be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.web.compiled import SEEING_LITTLE, SIZES
from tests.web.cpu_runtime import ENOUGH, Runtime, assistant, system, user

CHUNK = SIZES[SEEING_LITTLE].prefill_chunk


def chats(runtime: Runtime) -> dict[str, Any]:
    """Chats with one system prompt, in the order in which `page_beginnings.mjs` has them.

    Of each question its answer, and `kept`: tokens of the prompt's chunks that prompts before it
    have read. `stored`: how many different chunks all of them have; `again`: of the second
    question, once it has been read whole.
    """
    rule = system("One two three four five six seven eight nine ten. " * 5 + "Be kind.")
    first, other, back = (
        "Which day comes after Monday?",
        "Who are you?",
        "What comes after seven?",
    )
    prompts: list[list[int]] = []

    def chat(*messages: dict[str, str]) -> dict[str, Any]:
        prompt = runtime.prompt([rule, *messages])
        kept = max((whole_chunks(prompt, before) for before in prompts), default=0)
        prompts.append(prompt)
        reply, _ = runtime.greedy(prompt, ENOUGH)
        return {"question": messages[-1]["content"], "answer": runtime.decode(reply), "kept": kept}

    told: dict[str, Any] = {"first": chat(user(first)), "other": chat(user(other))}
    said = assistant(told["first"]["answer"])
    told["back"] = chat(user(first), said, user(back))
    assert 0 < told["other"]["kept"] <= told["back"]["kept"]
    chunks = {tuple(ids[:end]) for ids in prompts for end in range(CHUNK, len(ids) + 1, CHUNK)}
    again = whole_chunks(prompts[1], prompts[1])
    return {
        "system": rule["content"],
        **told,
        "stored": len(chunks),
        "again": again,
        "chunk": CHUNK,
    }


def whole_chunks(prompt: Sequence[int], before: Sequence[int]) -> int:
    """Tokens of the chunks with which both begin."""
    alike = 0
    while alike < min(len(prompt), len(before)) and prompt[alike] == before[alike]:
        alike += 1
    return alike - alike % CHUNK

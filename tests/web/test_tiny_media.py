"""The shipped model sees and hears in the unmodified WebLLM client, right word for word."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.web.compiled import SEEING_LITTLE, Compiler
from tests.web.cpu_runtime import QUANT
from tests.web.webllm import chat, run_in_webllm

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SAMPLES = Path(__file__).parents[2] / "examples" / "web" / "public" / "samples"


def part(name: str) -> dict[str, Any]:
    """A sample as a part of a message."""
    data = base64.b64encode((SAMPLES / name).read_bytes()).decode()
    if name.endswith(".wav"):
        return {"type": "input_audio", "input_audio": {"format": "wav", "data": data}}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def message(text: str, *media: str) -> dict[str, Any]:
    """A question after pictures and sounds."""
    return {"role": "user", "content": [*map(part, media), {"type": "text", "text": text}]}


def test_it_says_what_is_there_and_what_is_not(
    compiled: Compiler, browser: str, tmp_path: Path
) -> None:
    del browser
    seen = "A red circle and a blue square."
    first = message("What is in the picture?", "shapes.png")
    asked: tuple[tuple[list[dict[str, Any]], str], ...] = (
        ([first], seen),
        (
            [first, {"role": "assistant", "content": seen}, message("Where is the square?")],
            "On the right.",
        ),
        ([message("What do you hear?", "beeps.wav")], "Three high beeps."),
        ([{"role": "user", "content": "What is in the picture?"}], "There is no picture."),
    )
    steps = [chat(messages, temperature=0, max_tokens=40) for messages, _ in asked]
    replies = run_in_webllm(compiled(SEEING_LITTLE, "webgpu", QUANT), steps, tmp_path)
    assert [reply.text for reply in replies] == [answer for _, answer in asked]

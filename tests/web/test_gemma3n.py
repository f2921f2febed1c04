"""A small random Gemma 3n in the stock client, next to transformers on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests import gemma3n, hf, models, tolerances
from tests.parity.conftest import margin
from tests.web.compiled import Compiler
from tests.web.cpu_runtime import LENGTH, render, user, with_system_turn
from tests.web.webllm import chat, run_in_webllm

pytestmark = [pytest.mark.browser, pytest.mark.slow]

KIND = "3n e2b"


def test_a_greedy_reply_has_the_tokens_of_transformers(
    browser: str, compiled: Compiler, tmp_path: Path
) -> None:
    package, messages = compiled(KIND, "webgpu", "f32"), [user("Hi")]
    asked = chat(messages, temperature=0, max_tokens=LENGTH, ignore_eos=True)
    (reply,) = run_in_webllm(package, [asked], tmp_path)

    tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
    prompt = tokenizer.encode(render(with_system_turn(messages)), add_special_tokens=False).ids
    assert list(reply.watched[: len(prompt)]) == prompt
    text = gemma3n.KINDS[KIND]
    truth = hf.logits(hf.load(text, models.random_weights(text), "float32"), reply.watched)
    drawn = reply.watched[len(prompt) :]
    assert reply.usage["completion_tokens"] == LENGTH
    assert len(drawn) >= LENGTH - 1  # the last one may never be given to the model
    rows = truth[len(prompt) - 1 :]
    decided = [margin(row) > 2 * tolerances.LOGITS_F32 for row in rows[: len(drawn)]]
    assert sum(decided) > len(drawn) // 2
    for token, row, is_decided in zip(drawn, rows, decided, strict=False):
        assert token == row.argmax() or not is_decided

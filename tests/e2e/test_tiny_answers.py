"""The shipped model, compiled for `cpu` in every recipe, answers a fixed list of questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.runtime import Chat, Sampler, SamplingOptions
from tests.marks import exhaustive_if, slow_unless
from tests.tiny_answers import CONVERSATIONS
from tests.web.compiled import TINY, Compiler

GREEDY = Sampler(SamplingOptions(temperature=0.0))


# q4f16s and q4f16l are made of the same kernels, and of the bits between these; q4f32 and f16
# differ from q4f16 and f32 in the arithmetic, which tests/parity/test_recipes.py compares.
# The exhaustive run alone asks q4f16m and q4kf16, of which q4f16 and q4kf16m have all, q8f16, which
# tests/web/test_tiny_answers.py asks on WebGPU, and f32, whose logits and replies are those of
# transformers in tests/parity/test_float32.py.
KINDS = [name for name in RECIPES if not name.endswith(("s", "l")) and name not in ("q4f32", "f16")]


RECIPES_ASKED = exhaustive_if(
    lambda recipe: recipe in ("q4f16m", "q4kf16", "q8f16", "f32"),
    slow_unless(lambda recipe: recipe == "q4f16", KINDS),
)


@pytest.fixture(scope="module", params=RECIPES_ASKED)
def package(request: pytest.FixtureRequest, compiled: Compiler) -> Path:
    return compiled(TINY, "cpu", request.param)


def test_it_answers_word_for_word(package: Path) -> None:
    wrong = []
    for conversation in CONVERSATIONS:
        chat = Chat.open(package, system=conversation.system)
        for question, answer in conversation.turns:
            found = "".join(chat.stream(question, GREEDY, max_tokens=50))
            assert chat.last_reply is not None
            if found != answer or chat.last_reply.finish_reason != "stop":
                wrong.append(f"{conversation.name}: {question} -> {found}")
    assert not wrong, "\n".join(wrong)

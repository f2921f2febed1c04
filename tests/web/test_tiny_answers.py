"""The shipped model, compiled for WebGPU in every recipe, answers questions on Dawn in Node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile.runtime import Package
from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from tests.marks import exhaustive_if, slow_unless
from tests.tiny_answers import Conversation, few
from tests.web.compiled import TINY, Compiler
from tests.web.dawn import Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

# Without `shader-f16`, on SwiftShader: test_libraries.py. In the exhaustive run alone: f32, which
# test_dawn.py has next to the CPU's, and q4f32, which answers in test_page.py.
CASES = exhaustive_if(
    lambda recipe: recipe in ("f32", "q4f32"),
    slow_unless(lambda recipe: recipe == "q4f16", ["q4f16", "q8f16", "f16", "q4f32", "f32"]),
)
END_OF_TURN = 106


def _prompts(conversation: Conversation) -> Iterator[tuple[list[Message], str]]:
    """The messages before each answer, and the answer."""
    messages = [] if conversation.system is None else [Message("system", conversation.system)]
    for question, answer in conversation.turns:
        messages.append(Message("user", question))
        yield list(messages), answer
        messages.append(Message("assistant", answer))


@pytest.mark.parametrize("recipe", CASES)
def test_it_answers_word_for_word(
    recipe: str, compiled: Compiler, lavapipe: VulkanDriver, folder: Path
) -> None:
    # For its tokenizer and its template, which every recipe has.
    package = Package.open(compiled(TINY, "cpu", "q4f16"))
    tokenizer = package.load_tokenizer()
    template = package.chat_template()
    builder = PromptBuilder(tokenizer, template)
    # The last question of a conversation stands behind all that the model must remember.
    asked = [list(_prompts(conversation))[-1] for conversation in few()]
    steps: list[Step] = []
    for messages, _ in asked:
        greedy = {"ids": builder.build(messages).ids, "count": 50, "stop": [END_OF_TURN]}
        steps += [{"op": "clear"}, {"op": "greedy", **greedy}]
    run = run_on_dawn(compiled(TINY, "webgpu", recipe), steps, folder, lavapipe)
    replies = [list(step["tokens"]) for step in run.steps[1::2]]
    assert [reply[-1] for reply in replies] == [END_OF_TURN] * len(replies)
    found = [tokenizer.decode(reply) for reply in replies]
    assert found == [answer for _, answer in asked]

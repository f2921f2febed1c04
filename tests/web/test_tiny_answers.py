"""The shipped model, compiled for WebGPU in every recipe, answers questions on Dawn in Node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile.runtime import Package
from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from gemma4_compile.targets.spec import NATIVE, WORDS
from tests.marks import slow_unless
from tests.tiny_answers import Conversation, few
from tests.web.compiled import TINY, Compiler
from tests.web.dawn import Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

DRIVERS = {
    "q4f16": "lavapipe",
    "q8f16": "lavapipe",
    "f16": "lavapipe",
    "q4f32": "lavapipe",
    "f32": "lavapipe",
}
AS_WORDS = ("q4f16", "swiftshader", WORDS)  # which has no shader-f16
CASES = [*((recipe, driver, NATIVE) for recipe, driver in DRIVERS.items()), AS_WORDS]
END_OF_TURN = 106


def _prompts(conversation: Conversation) -> Iterator[tuple[list[Message], str]]:
    """The messages before each answer, and the answer."""
    messages = [] if conversation.system is None else [Message("system", conversation.system)]
    for question, answer in conversation.turns:
        messages.append(Message("user", question))
        yield list(messages), answer
        messages.append(Message("assistant", answer))


@pytest.mark.parametrize(
    ("recipe", "driver_name", "float16"),
    slow_unless(lambda recipe, _, float16: (recipe, float16) == ("q4f16", NATIVE), CASES),
)
def test_it_answers_word_for_word(
    recipe: str,
    driver_name: str,
    float16: str,
    compiled: Compiler,
    request: pytest.FixtureRequest,
    folder: Path,
) -> None:
    driver: VulkanDriver = request.getfixturevalue(driver_name)
    package = Package.open(compiled(TINY, "cpu", recipe))  # for its tokenizer and its template
    tokenizer = package.load_tokenizer()
    template = package.chat_template()
    builder = PromptBuilder(tokenizer, template)
    # The last question of a conversation stands behind all that the model must remember.
    asked = [list(_prompts(conversation))[-1] for conversation in few()]
    steps: list[Step] = []
    for messages, _ in asked:
        greedy = {"ids": builder.build(messages).ids, "count": 50, "stop": [END_OF_TURN]}
        steps += [{"op": "clear"}, {"op": "greedy", **greedy}]
    run = run_on_dawn(compiled(TINY, "webgpu", recipe, float16=float16), steps, folder, driver)
    replies = [list(step["tokens"]) for step in run.steps[1::2]]
    assert [reply[-1] for reply in replies] == [END_OF_TURN] * len(replies)
    found = [tokenizer.decode(reply) for reply in replies]
    assert found == [answer for _, answer in asked]

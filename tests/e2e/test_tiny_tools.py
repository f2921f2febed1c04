"""The shipped model at its own sampling defaults, and with tools, in the default recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.runtime import Chat, Engine, Package, Sampler
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import make_sampler
from tests.web.compiled import TINY, Compiler
from tools.training.tiny.tools import PAGE_CALCULATOR

SEEDS = range(12)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get current temperature for a given location.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": "The location"}},
            "required": ["location"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CALCULATOR = PAGE_CALCULATOR.declared()


@pytest.fixture(scope="module")
def package(compiled: Compiler) -> Package:
    return Package.open(compiled(TINY, "cpu", "q4f16"))


@pytest.fixture(scope="module")
def engine(package: Package) -> Engine:
    return Engine(package)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What comes after seven?", "8 comes after 7."),
        ("what comes before twenty", "19 comes before 20."),
        ("What is six plus three?", "6 plus 3 is 9."),
        ("What comes after Sunday?", "Monday comes after Sunday."),
        ("7*8", "7 times 8 is 56."),
        ("Tomorrow is Monday. What is today?", "Sunday comes before Monday."),
        ("Which targets are there?", "The targets are webgpu, metal, cuda and cpu."),
    ],
)
def test_every_seed_answers_right(
    question: str, answer: str, package: Package, engine: Engine
) -> None:
    chat = Chat(engine, package)
    found = []
    for seed in SEEDS:
        chat.clear()
        sampler = make_sampler(package.sampling_defaults(), seed)
        found.append("".join(chat.stream(question, sampler, max_tokens=40)))
    assert found == [answer] * len(SEEDS)


class _Caller:
    """Asks with declared tools, as the server does."""

    def __init__(self, package: Package, engine: Engine) -> None:
        tokenizer = package.load_tokenizer()
        template = package.chat_template()
        self._prompts = PromptBuilder(tokenizer, template, engine.context_length)
        self._generator = Generator(engine, tokenizer, package.stop_token_ids)
        self._defaults = package.sampling_defaults()

    def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], seed: int = 1
    ) -> Generation:
        prompt = self._prompts.build(messages, tools=tools)
        generation = self._generator.start(prompt, Sampler(self._defaults, seed), max_tokens=60)
        for _ in generation:
            pass
        assert generation.finish_reason == "stop"
        return generation


@pytest.fixture(scope="module")
def caller(package: Package, engine: Engine) -> _Caller:
    return _Caller(package, engine)


@pytest.mark.parametrize(
    ("tool", "question", "arguments", "result", "answer"),
    [
        (CALCULATOR, "What is 4321 * 17?", {"expression": "4321 * 17"}, "73457",
         "4321 times 17 is 73457."),
        (CALCULATOR, "What is 8 plus 19?", {"expression": "8 + 19"}, "27", "8 plus 19 is 27."),
        (WEATHER, "What is the weather in Paris?", {"location": "Paris"}, "sunny",
         "The weather in Paris: sunny."),
    ],
)  # fmt: skip
def test_tools_are_called_and_their_answers_told(
    tool: Mapping[str, Any],
    question: str,
    arguments: Mapping[str, Any],
    result: str,
    answer: str,
    caller: _Caller,
) -> None:
    asked = Message("user", question)
    for seed in range(4):
        called = caller.reply([asked], [tool], seed)
        assert called.text == ""
        assert [(call.name, call.arguments) for call in called.tool_calls] == [
            (tool["function"]["name"], arguments)
        ]
    calls = (ToolCall(tool["function"]["name"], arguments, "call_1"),)
    said = [asked, Message("assistant", "", tool_calls=calls)]
    told = caller.reply([*said, Message("tool", result, tool_call_id="call_1")], [tool])
    assert (told.text, told.tool_calls) == (answer, [])


def test_what_needs_no_tool_calls_none(caller: _Caller) -> None:
    found = caller.reply([Message("user", "Who are you?")], [CALCULATOR, WEATHER])
    assert found.text.startswith("I am tiny")
    assert not found.tool_calls


def test_the_calculator_of_the_training_is_the_pages() -> None:
    page = Path(__file__).parents[2] / "examples" / "web" / "src" / "chat" / "tools.ts"
    text = page.read_text("utf-8")
    ((name, _, described),) = PAGE_CALCULATOR.arguments
    for said in (PAGE_CALCULATOR.name, PAGE_CALCULATOR.description, described):
        assert json.dumps(said) in text
    assert f"{name}: {{" in text

"""Prompts of the runtime against `apply_chat_template` of transformers on the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny.checkpoint import TOKENIZER_FILES, shipped_file

pytestmark = pytest.mark.parity

CONVERSATIONS = {
    "question": [("user", " Hi there ")],
    "system": [("system", "Be brief.\n"), ("user", "Hi")],
    "two turns": [("user", "a"), ("assistant", "b\n\n c "), ("user", "d")],
    "thought": [("user", "a"), ("assistant", "<|channel>thought\nx<channel|>b"), ("user", "d")],
    "other letters": [("user", "Zürich 日本 😀\n\n\n\n\n x")],
}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    for name in TOKENIZER_FILES:
        (folder / name).write_bytes(shipped_file(name))
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_text_and_ids_are_those_of_transformers(
    truth: PreTrainedTokenizerBase, name: str, thinking: bool
) -> None:
    messages = [Message(role, content) for role, content in CONVERSATIONS[name]]
    plain = [{"role": message.role, "content": message.content} for message in messages]
    template = ChatTemplate(shipped_file("chat_template.jinja").decode(), {"bos_token": "<bos>"})
    tokenizer = Tokenizer.from_buffer(shipped_file("tokenizer.json"))

    text = truth.apply_chat_template(
        plain, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    ids = truth.apply_chat_template(
        plain,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )

    assert template.render(messages, thinking=thinking) == text
    assert PromptBuilder(tokenizer, template).build(messages, thinking=thinking).ids == ids


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "unit": {"type": "string", "enum": ["C", "F"], "description": "Of degrees"},
                "days": {"type": "array", "items": {"type": "integer"}, "default": 1},
            },
            "required": ["type"],
            "additionalProperties": False,
        },
    },
}
DECLARED = (
    '<|tool>declaration:get_weather{description:<|"|>Tells the weather.<|"|>,parameters:{'
    'properties:{days:{items:{type:<|"|>INTEGER<|"|>},type:<|"|>ARRAY<|"|>},type:{type:<|"|>STRING<|"|>},'
    'unit:{description:<|"|>Of degrees<|"|>,enum:[<|"|>C<|"|>,<|"|>F<|"|>],type:<|"|>STRING<|"|>}},'
    'required:[<|"|>type<|"|>],type:<|"|>OBJECT<|"|>}}<tool|>'
)
CALLS = (ToolCall("get_weather", {"type": "now", "days": [1, 2], "deep": {"a": None}}, "1"),)
CALL = '<|tool_call>call:get_weather{days:[1,2],deep:{a:null},type:<|"|>now<|"|>}<tool_call|>'
RESPONSE = '<|tool_response>response:get_weather{value:<|"|>sunny<|"|>}<tool_response|>'
ASKED = Message("user", "Weather?")
CALLED = Message("assistant", "", tool_calls=CALLS)
TOLD = Message("tool", "sunny", tool_call_id="1")
SYSTEM = f"<bos><|turn>system\n{DECLARED}<turn|>\n<|turn>user\nWeather?<turn|>\n<|turn>model\n"
TOOL_CONVERSATIONS = {
    "question": ([ASKED], SYSTEM),
    "call": ([ASKED, CALLED], f"{SYSTEM}{CALL}<|tool_response>"),
    "result": ([ASKED, CALLED, TOLD], f"{SYSTEM}{CALL}{RESPONSE}"),
    "answer": (
        [ASKED, CALLED, TOLD, Message("assistant", "Sunny."), Message("user", "Thanks")],
        f"{SYSTEM}{CALL}{RESPONSE}Sunny.<turn|>\n<|turn>user\nThanks<turn|>\n<|turn>model\n",
    ),
}


@pytest.mark.parametrize("name", TOOL_CONVERSATIONS)
def test_tools_follow_gemmas_form_here_and_in_transformers(
    truth: PreTrainedTokenizerBase, name: str
) -> None:
    messages, expected = TOOL_CONVERSATIONS[name]
    template = ChatTemplate(shipped_file("chat_template.jinja").decode(), {"bos_token": "<bos>"})
    assert template.render(messages, tools=[WEATHER]) == expected
    plain = [message.for_template() for message in messages]
    found = truth.apply_chat_template(
        plain, tools=[WEATHER], tokenize=False, add_generation_prompt=True
    )
    assert found == expected

"""Prompts of the runtime against `apply_chat_template` of transformers on the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gemma4_compile.chat_template import ChatTemplate
from gemma4_compile.runtime.prompt import Message, PromptBuilder
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
    options = {"add_generation_prompt": True, "enable_thinking": thinking}
    template = ChatTemplate(shipped_file("chat_template.jinja").decode(), {"bos_token": "<bos>"})
    tokenizer = Tokenizer.from_buffer(shipped_file("tokenizer.json"))

    text = truth.apply_chat_template(plain, tokenize=False, **options)
    ids = truth.apply_chat_template(plain, tokenize=True, return_dict=False, **options)

    assert template.render(messages, thinking=thinking) == text
    assert PromptBuilder(tokenizer, template).build(messages, thinking=thinking) == ids

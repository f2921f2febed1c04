from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest
from tokenizers import Tokenizer

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.engine.sequence import ContextFullError, Overflow
from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny.checkpoint import shipped_file

SPECIAL = {"bos_token": "<bos>"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_buffer(shipped_file("tokenizer.json"))


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(shipped_file("chat_template.jinja").decode(), SPECIAL)


def test_tools_that_a_template_does_not_read_are_refused(tokenizer: Tokenizer) -> None:
    """As Gemma 3n's: the model would answer as if nobody had declared any."""
    plain = ChatTemplate("{{ messages[0].content }}", SPECIAL)
    builder = PromptBuilder(tokenizer, plain)
    asked = [Message("user", "x")]
    assert builder.build(asked)
    with pytest.raises(UsageError, match="knows no tools"):
        builder.build(asked, tools=[{"type": "function", "function": {"name": "f"}}])


def test_a_panic_of_the_tokenizer_is_an_error_of_the_text() -> None:
    class PanicException(BaseException):
        pass

    class Panics:
        model = None

        def encode(self, text: str, **options: object) -> object:
            raise PanicException("called `Result::unwrap()` on an `Err` value")

        def encode_batch_fast(self, texts: list[str], **options: object) -> object:
            return self.encode(texts[0])

        def token_to_id(self, token: str) -> None:
            return None

        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    builder = PromptBuilder(cast(Tokenizer, Panics()), None)
    for text in ("a", "a" * (1 << 17)):
        with pytest.raises(UsageError, match="the tokenizer fails at this text: called"):
            builder.encode(text)


# Rendered examples of the canonical template of E2B and E4B.
@pytest.mark.parametrize(
    ("messages", "thinking", "expected"),
    [
        (
            [Message("user", " Hi there ")],
            False,
            "<bos><|turn>user\nHi there<turn|>\n<|turn>model\n",
        ),
        (
            [Message("system", "Be brief."), Message("user", "Hi there")],
            True,
            "<bos><|turn>system\n<|think|>\nBe brief.<turn|>\n"
            "<|turn>user\nHi there<turn|>\n<|turn>model\n",
        ),
        (
            [
                Message("user", "a"),
                Message("assistant", "<|channel>thought\nhm<channel|>b"),
                Message("user", "c"),
            ],
            False,
            "<bos><|turn>user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>user\nc<turn|>\n"
            "<|turn>model\n",
        ),
    ],
)
def test_shipped_template_follows_the_turn_rules(
    template: ChatTemplate, messages: list[Message], thinking: bool, expected: str
) -> None:
    assert template.render(messages, thinking=thinking) == expected


def test_generated_ids_are_in_the_prompt_as_they_were(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    builder = PromptBuilder(tokenizer, template)
    byte = tokenizer.token_to_id("<0xFF>")
    assert byte is not None
    broken = (byte, 700, 701)
    question, again = Message("user", "one"), Message("user", "two")

    first = builder.build([question])
    both = builder.build([question, Message("assistant", "ignored", broken), again])

    closing = builder.encode("<turn|>\n<|turn>user\ntwo<turn|>\n<|turn>model\n")
    assert both.ids == [*first.ids, *broken, *closing]


def test_reasoning_of_earlier_replies_is_dropped(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    builder = PromptBuilder(tokenizer, template)
    reasoning = builder.encode("<|channel>thought\nhm<channel|>")
    answer = builder.encode("yes")
    question, again = Message("user", "one"), Message("user", "two")

    with_reasoning = Message("assistant", "yes", (*reasoning, *answer))
    without = Message("assistant", "yes", tuple(answer))

    expected = builder.build([question, without, again])
    assert builder.build([question, with_reasoning, again]) == expected


def test_text_alone_gives_the_same_ids_as_the_whole_rendered_prompt(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    builder = PromptBuilder(tokenizer, template)
    messages = [Message("user", "one"), Message("assistant", "yes"), Message("user", "two")]
    replayed = [
        messages[0],
        Message("assistant", "yes", tuple(builder.encode("yes"))),
        messages[2],
    ]
    assert builder.build(messages) == builder.build(replayed)


def test_a_template_that_refuses_gives_the_reason(template: ChatTemplate) -> None:
    with pytest.raises(UsageError, match="unknown role: nobody"):
        template.render([Message("nobody", "x")])


def test_a_damaged_template_is_an_artifact_error() -> None:
    with pytest.raises(ArtifactError, match="chat template"):
        ChatTemplate("{% if %}", SPECIAL)


def test_a_template_cannot_reach_python() -> None:
    hostile = ChatTemplate("{{ ''.__class__.__mro__ }}", SPECIAL)
    with pytest.raises(UsageError):
        hostile.render([Message("user", "x")])


TOOL_TEMPLATE = (Path(__file__).parents[3] / "tool_template.jinja").read_text("utf-8")
CALL = ToolCall("weather", {"city": "Rome", "days": [1, None]}, "c1")
CALLED = '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:[1,null]}<tool_call|>'
RESULT = '<|tool_response>response:weather{value:<|"|>sunny<|"|>}<tool_response|>'


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [Message("user", "w?"), Message("assistant", "Wait.", tool_calls=(CALL,))],
            f"{CALLED}Wait.<|tool_response>",
        ),
        # The reply goes on in the turn of the call: its text would close that turn.
        (
            [
                Message("user", "w?"),
                Message("assistant", "Wait.", reasoning="hm", tool_calls=(CALL,)),
                Message("tool", "sunny", tool_call_id="c1"),
            ],
            f"<|channel>thought\nhm\n<channel|>{CALLED}{RESULT}",
        ),
        (
            [
                Message("user", "w?"),
                Message("assistant", "", reasoning="hm", tool_calls=(CALL,)),
                Message("tool", "sunny", tool_call_id="c1"),
                Message("assistant", "It is sunny."),
                Message("user", "x"),
            ],
            f"{CALLED}{RESULT}It is sunny.<turn|>\n<|turn>user\nx<turn|>\n<|turn>model\n",
        ),
    ],
)
def test_calls_and_results_are_in_the_model_s_turn(
    tokenizer: Tokenizer, messages: list[Message], expected: str
) -> None:
    builder = PromptBuilder(tokenizer, ChatTemplate(TOOL_TEMPLATE, SPECIAL))
    opening = "<bos><|turn>user\nw?<turn|>\n<|turn>model\n"
    assert builder.build(messages).ids == builder.encode(opening + expected)


def test_a_text_that_cannot_fit_is_not_encoded(
    tokenizer: Tokenizer, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = PromptBuilder(tokenizer, template, 20_000)
    longest = max(len(token.encode()) for token in tokenizer.get_vocab())
    assert builder.max_bytes == 20_000 * longest
    encoded: list[int] = []
    encode = builder._encode

    def record(text: str) -> object:
        encoded.append(len(text))
        return encode(text)

    monkeypatch.setattr(builder, "_encode", record)
    for text in ("a" * (builder.max_bytes + 1), "a" * builder.max_bytes):
        with pytest.raises(ContextFullError, match="the context holds 20000") as of_text:
            builder.encode(text)
        with pytest.raises(ContextFullError, match="the context holds 20000") as of_chat:
            builder.build([Message("user", text)])
        for error in (of_text.value, of_chat.value):
            counted = re.search("takes (?:more than )?([0-9]+) tokens", str(error))
            assert error.overflow == (counted and Overflow(int(counted[1]), 20_000))
    assert of_text.value.overflow is not None
    with pytest.raises(ContextFullError):
        builder.build([Message("user", "x")], tools=[{"description": "a" * 10**6}])
    assert encoded
    assert max(encoded) <= 2**16


def test_a_long_text_that_fits_has_the_ids_of_the_whole(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    text = "What is eight plus nineteen? " * 12_000
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert PromptBuilder(tokenizer, template, len(ids)).encode(text) == ids
    with pytest.raises(ContextFullError) as raised:
        PromptBuilder(tokenizer, template, len(ids) - 1).encode(text)
    assert raised.value.overflow == Overflow(len(ids), len(ids) - 1)

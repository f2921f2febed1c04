"""Counts are lower bounds: what they refuse does not fit."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from gemma4_compile.runtime.engine.sequence import ContextFullError, Overflow
from gemma4_compile.runtime.prompt import prompt_room
from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from gemma4_compile.runtime.prompt.prompt_room import FEW, Fewest, Holds, TokenCount
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.marks import slow_unless

SPECIAL = {"bos_token": "<bos>"}
LAST = "{% for m in messages[-COUNT:] %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_buffer(shipped_file("tokenizer.json"))


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(shipped_file("chat_template.jinja").decode(), SPECIAL)


def questions(count: int) -> list[Message]:
    return [Message("user", "a")] * count


def turns(count: int) -> list[Message]:
    asked, answered = Message("user", "a"), Message("assistant", "b")
    return [*[asked, answered] * (count // 2), asked]


def calls(count: int) -> list[Message]:
    made = tuple(ToolCall("f", {}, f"c{index}") for index in range(count))
    results = [Message("tool", "", tool_call_id=f"c{index}") for index in range(count // 3)]
    return [Message("user", "a"), Message("assistant", "", tool_calls=made), *results]


CONVERSATIONS = {"questions": questions, "turns": turns, "calls": calls}


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "calls", CONVERSATIONS))
def test_what_fits_is_not_refused_and_what_does_not_is(
    name: str, tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    messages = CONVERSATIONS[name](3 * FEW)
    length = len(PromptBuilder(tokenizer, template).build(messages))
    fewest = Fewest.of(template, lambda text: len(tokenizer.encode(text).ids))
    assert length / 3 < fewest.tokens(Holds.of(messages)) <= length
    assert len(PromptBuilder(tokenizer, template, length).build(messages)) == length
    for room in (length - 1, length // 2, length // 4):
        with pytest.raises(ContextFullError, match=f"the context holds {room} tokens"):
            PromptBuilder(tokenizer, template, room).build(messages)


def test_what_cannot_fit_is_not_rendered(
    tokenizer: Tokenizer, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = PromptBuilder(tokenizer, template, 1024)
    with pytest.raises(ContextFullError):
        builder.build(turns(10_000))
    monkeypatch.setattr(ChatTemplate, "render", lambda *_, **__: pytest.fail("rendered"))
    for name, conversation in CONVERSATIONS.items():
        with pytest.raises(ContextFullError, match="tokens or more") as raised:
            builder.build(conversation(1000))
        tokens = int(str(raised.value).partition(" takes ")[2].split()[0])
        assert raised.value.overflow == Overflow(tokens, 1024)
        assert name


@pytest.mark.parametrize("kept", [2, 10, 30, 100, 300, 500])
def test_earlier_messages_that_a_template_leaves_out_are_not_counted(
    kept: int, tokenizer: Tokenizer
) -> None:
    template = ChatTemplate(LAST.replace("COUNT", str(kept)), {})
    assert len(PromptBuilder(tokenizer, template, 2048 + 8 * kept).build(turns(5000))) < 10 * kept


def rounds(count: int) -> list[Message]:
    made = (ToolCall("f", {}, "c0"),)
    called, result = (
        Message("assistant", "", tool_calls=made),
        Message("tool", "", tool_call_id="c0"),
    )
    return [Message("user", "a"), *[called, result] * count]


def test_rounds_of_tools_that_a_template_shortens_are_not_counted_by_their_calls(
    tokenizer: Tokenizer,
) -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if loop.length > 1 %}"
        "call {{ c.id }}{% endif %}{% endfor %}{{ m.content }}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert len(PromptBuilder(tokenizer, template, 64).build(rounds(200))) < 64


def test_a_slow_template_is_not_measured_for_long(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_room, "MEASURE_SECONDS", 0.05)
    each = "{% for m in messages %}"
    cubic = ChatTemplate(each * 3 + "{{ m.content }}" + "{% endfor %}" * 3, {})
    assert Fewest.of(cubic, lambda text: len(text)) == Fewest(0, 0, 0)


def test_tools_that_a_template_leaves_out_are_not_counted(tokenizer: Tokenizer) -> None:
    without_tools = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert len(PromptBuilder(tokenizer, without_tools, 1024).build(calls(5000))) == 1


def test_earlier_reasoning_is_not_counted(tokenizer: Tokenizer, template: ChatTemplate) -> None:
    thought = Message("assistant", "b", reasoning="x" * 1_000_000)
    messages = [Message("user", "a"), thought, Message("user", "a")]
    assert len(PromptBuilder(tokenizer, template, 64).build(messages)) < 64


def test_replies_whose_ids_are_few_are_not_counted_by_their_marks(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    asked, answered = Message("user", "a"), Message("assistant", "", token_ids=())
    messages = [*[asked, answered] * 500, asked]
    length = len(PromptBuilder(tokenizer, template).build(messages))
    assert len(PromptBuilder(tokenizer, template, length).build(messages)) == length


def test_a_growing_text_is_counted_with_less_than_it_has() -> None:
    count = TokenCount(1000, lambda text: len(text) // 2)
    tokens = [count.add("abcd" * 5) for _ in range(1000)]
    assert tokens[:200] == [0] * 200
    assert 5000 < tokens[-1] <= 10_000

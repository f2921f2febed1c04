"""Conversations on `tiny`: turns on one state, every end of a reply, the end of the context.

Where a test needs a reply of a certain length, a script chooses its tokens; what the model thinks
of them shows in the greedy tokens that follow.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gemma4_compile.runtime import Chat, ContextFullError, Reply, Sampler, SamplingOptions
from gemma4_compile.runtime.engine.model_runner import ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.sampling.sampling import Float32Array
from tests.packages import list_files

Chooser = Callable[[Float32Array], int]

GREEDY = Sampler(SamplingOptions(temperature=0.0))
END_OF_TURN = 106
WORDS = (500, 501, 502, 503, 504, 505, 506, 507, 508, 509)


def scripted(*ids: int) -> Chooser:
    """Chooses these tokens, then the end of the turn."""
    script = iter(ids)
    return lambda logits: next(script, END_OF_TURN)


@pytest.fixture(scope="module")
def chat(tiny_package: Path) -> Chat:
    return Chat.open(tiny_package)


def ask(chat: Chat, text: str, chooser: Chooser = GREEDY, max_tokens: int | None = 8) -> Reply:
    pieces = list(chat.stream(text, chooser, max_tokens=max_tokens))
    assert chat.last_reply is not None
    assert "".join(pieces) == chat.last_reply.text
    assert all(pieces)
    return chat.last_reply


def test_a_stop_token_ends_a_reply_and_is_not_part_of_it(chat: Chat) -> None:
    chat.clear()
    reply = ask(chat, "Hi", scripted(*WORDS), None)
    assert (reply.finish_reason, reply.token_ids) == ("stop", WORDS)


def test_max_tokens_ends_a_reply(chat: Chat) -> None:
    chat.clear()
    reply = ask(chat, "Hi", scripted(*WORDS), 4)
    assert (reply.finish_reason, reply.token_ids) == ("length", WORDS[:4])


@pytest.mark.parametrize("max_tokens", [None, 4])
def test_a_later_turn_equals_the_whole_prompt_from_the_start(
    chat: Chat, tiny_package: Path, max_tokens: int | None
) -> None:
    chat.clear()
    first = ask(chat, "Hello, how are you?", scripted(*WORDS), max_tokens)
    second = ask(chat, "And then?", scripted(*WORDS[::-1]), max_tokens)
    third = ask(chat, "Why?")
    assert second.reused_tokens >= first.prompt_tokens
    assert third.reused_tokens >= second.prompt_tokens

    fresh = Chat.open(tiny_package)
    fresh.messages += [
        Message("user", "Hello, how are you?"),
        Message("assistant", first.text, first.token_ids),
        Message("user", "And then?"),
        Message("assistant", second.text, second.token_ids),
    ]
    whole = ask(fresh, "Why?")
    assert whole.reused_tokens == 0
    assert whole.prompt_tokens == third.prompt_tokens
    assert whole.token_ids == third.token_ids


def test_a_template_that_drops_what_it_added_rewinds_the_state(
    tiny_package: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    shutil.copytree(tiny_package, folder)
    template = folder / "chat_template.jinja"
    opening = "{{- '<|turn>model\\n' -}}\n    {%- elif thinking"
    reasoning = opening.replace("model\\n", "model\\n<|channel>thought\\n<channel|>")
    assert opening in template.read_text()
    template.write_text(template.read_text().replace(opening, reasoning))
    list_files(folder)
    chat = Chat.open(folder)
    first = ask(chat, "Hi", scripted(*WORDS), None)
    second = ask(chat, "And then?")
    # The empty reasoning before the reply is gone, so the state goes back to where it began.
    assert 0 < second.reused_tokens < first.prompt_tokens

    fresh = Chat.open(folder)
    reply = Message("assistant", first.text, first.token_ids)
    fresh.messages += [Message("user", "Hi"), reply]
    assert ask(fresh, "And then?").token_ids == second.token_ids


def test_reasoning_is_neither_shown_nor_kept(chat: Chat, tiny_package: Path) -> None:
    chat.clear()
    opening, closing = 100, 101
    reply = ask(chat, "Hi", scripted(opening, *WORDS[:3], closing, *WORDS[3:]), None)
    assert reply.token_ids == (opening, *WORDS[:3], closing, *WORDS[3:])
    after = ask(chat, "And then?")

    fresh = Chat.open(tiny_package)
    plain = ask(fresh, "Hi", scripted(*WORDS[3:]), None)
    assert plain.text == reply.text
    assert ask(fresh, "And then?").token_ids == after.token_ids


def test_clear_starts_as_on_a_fresh_engine(chat: Chat, tiny_package: Path) -> None:
    chat.clear()
    ask(chat, "something before", scripted(*WORDS * 4), None)
    chat.clear()
    assert ask(chat, "Hi") == ask(Chat.open(tiny_package), "Hi")


def test_the_system_message_comes_first_and_survives_clear(tiny_package: Path) -> None:
    plain, instructed = Chat.open(tiny_package), Chat.open(tiny_package, system="Be brief.")
    assert ask(plain, "Hi").prompt_tokens < ask(instructed, "Hi").prompt_tokens
    instructed.clear()
    assert [message.role for message in instructed.messages] == ["system"]


def test_a_conversation_that_does_not_fit_is_refused_and_nothing_changes(
    tiny_package: Path,
) -> None:
    chat = Chat.open(tiny_package, context_length=80)
    ask(chat, "Hi", scripted(*WORDS), None)
    messages = list(chat.messages)
    with pytest.raises(ContextFullError, match=r"takes [0-9]+ tokens, and the context holds 80"):
        ask(chat, "many words " * 40)
    assert chat.messages == messages
    assert ask(chat, "ok").reused_tokens > 0


def test_a_reply_that_reaches_the_end_of_the_context_is_kept_and_reported(
    chat: Chat, tiny_package: Path
) -> None:
    chat.clear()
    prompt_tokens = ask(chat, "Hi").prompt_tokens
    short = Chat.open(tiny_package, context_length=prompt_tokens + 6)
    with pytest.raises(ContextFullError, match=r"the reply was cut after 7 tokens"):
        ask(short, "Hi", scripted(*WORDS), None)
    assert short.last_reply is not None
    assert short.last_reply.finish_reason == "context"
    assert short.last_reply.token_ids == WORDS[:7]
    assert short.messages[-1].token_ids == WORDS[:7]


def test_a_reply_that_nobody_reads_to_its_end_is_kept_as_far_as_it_came(chat: Chat) -> None:
    chat.clear()
    stream = chat.stream("Hi", scripted(*WORDS))
    assert isinstance(stream, Generator)
    first = next(stream)
    stream.close()
    assert chat.messages[-1].content == first
    assert ask(chat, "go on").reused_tokens > 0


def test_a_seed_repeats_a_sampled_reply(chat: Chat) -> None:
    wild = SamplingOptions(temperature=100.0)
    replies = []
    for seed in (5, 5, 6):
        chat.clear()
        replies.append(ask(chat, "Hi", Sampler(wild, seed)))
    assert replies[0].token_ids == replies[1].token_ids != replies[2].token_ids


def test_the_state_recovers_from_an_interrupted_forward(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat.open(tiny_package)
    expected = ask(Chat.open(tiny_package), "Hi")

    def interrupted(_runner: ModelRunner, sequence: Sequence, *_: object) -> None:
        sequence.begin(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ModelRunner, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(chat, "Hi")
    assert ask(chat, "Hi").token_ids == expected.token_ids

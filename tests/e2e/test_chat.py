"""Conversations on `tiny`: turns on one state, both ends of a reply, the end of the context."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.runtime import Chat, ContextFullError, Engine, Reply, Sampler, SamplingOptions
from gemma4_compile.runtime.prompt import Message

GREEDY = Sampler(SamplingOptions(temperature=0.0))
ENDS_BY_ITSELF = "Hello, how are you?"  # after 27 tokens
RUNS_ON = "Hi"


@pytest.fixture(scope="module")
def chat(tiny_package: Path) -> Chat:
    return Chat.open(tiny_package)


def ask(chat: Chat, text: str, max_tokens: int | None = None, sampler: Sampler = GREEDY) -> Reply:
    pieces = list(chat.stream(text, sampler, max_tokens=max_tokens))
    assert chat.last_reply is not None
    assert "".join(pieces) == chat.last_reply.text
    assert all(pieces)
    return chat.last_reply


def test_a_reply_ends_by_stop_token_or_by_length(chat: Chat) -> None:
    chat.clear()
    stopped = ask(chat, ENDS_BY_ITSELF, 60)
    chat.clear()
    cut = ask(chat, RUNS_ON, 20)
    assert (stopped.finish_reason, len(stopped.token_ids)) == ("stop", 27)
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 20)
    assert 106 not in stopped.token_ids


@pytest.mark.parametrize("first", [ENDS_BY_ITSELF, RUNS_ON])
def test_a_later_turn_equals_the_whole_prompt_from_the_start(
    chat: Chat, tiny_package: Path, first: str
) -> None:
    chat.clear()
    replies = [ask(chat, text, 40) for text in (first, "And then?", "Why?")]
    assert replies[1].reused_tokens > replies[0].prompt_tokens
    assert replies[2].reused_tokens > replies[1].prompt_tokens

    fresh = Chat.open(tiny_package)
    fresh.messages += [
        Message("user", first),
        Message("assistant", replies[0].text, replies[0].token_ids),
        Message("user", "And then?"),
        Message("assistant", replies[1].text, replies[1].token_ids),
    ]
    whole = ask(fresh, "Why?", 40)
    assert whole.reused_tokens == 0
    assert whole.prompt_tokens == replies[2].prompt_tokens
    assert whole.token_ids == replies[2].token_ids


def test_clear_starts_as_on_a_fresh_engine(chat: Chat, tiny_package: Path) -> None:
    chat.clear()
    ask(chat, "something before", 30)
    chat.clear()
    assert ask(chat, RUNS_ON, 20) == ask(Chat.open(tiny_package), RUNS_ON, 20)


def test_the_system_message_changes_the_reply_and_survives_clear(tiny_package: Path) -> None:
    plain, instructed = Chat.open(tiny_package), Chat.open(tiny_package, system="Be brief.")
    assert ask(plain, RUNS_ON, 8).token_ids != ask(instructed, RUNS_ON, 8).token_ids
    instructed.clear()
    assert [message.role for message in instructed.messages] == ["system"]


def test_a_conversation_that_does_not_fit_is_refused_and_nothing_changes(
    tiny_package: Path,
) -> None:
    chat = Chat.open(tiny_package, context_length=60)
    ask(chat, RUNS_ON, 10)
    messages = list(chat.messages)
    with pytest.raises(ContextFullError, match=r"takes [0-9]+ tokens, and the context holds 60"):
        ask(chat, "many words " * 20)
    assert chat.messages == messages
    assert ask(chat, "ok", 3).reused_tokens > 0


def test_a_reply_that_reaches_the_end_of_the_context_is_kept_and_says_so(
    tiny_package: Path,
) -> None:
    chat = Chat.open(tiny_package, context_length=30)
    with pytest.raises(ContextFullError, match=r"the reply was cut after [0-9]+ tokens, at 30"):
        ask(chat, RUNS_ON)
    assert chat.last_reply is not None
    assert chat.last_reply.finish_reason == "context"
    assert chat.messages[-1].token_ids == chat.last_reply.token_ids
    whole = ask(Chat.open(tiny_package), RUNS_ON, len(chat.last_reply.token_ids))
    assert chat.last_reply.token_ids == whole.token_ids


def test_a_reply_that_nobody_reads_to_its_end_is_kept_as_far_as_it_came(chat: Chat) -> None:
    chat.clear()
    stream = chat.stream(RUNS_ON, GREEDY)
    first = next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert chat.messages[-1].content == first
    following = ask(chat, "go on", 5)
    assert following.reused_tokens > 0


def test_a_seed_repeats_a_sampled_reply(chat: Chat) -> None:
    replies = []
    for seed in (5, 5, 6):
        chat.clear()
        replies.append(ask(chat, RUNS_ON, 20, Sampler(SamplingOptions(top_k=64), seed)))
    assert replies[0].token_ids == replies[1].token_ids != replies[2].token_ids


def test_the_state_recovers_from_an_interrupted_forward(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat.open(tiny_package)
    expected = ask(Chat.open(tiny_package), RUNS_ON, 6)

    def interrupted(self: Engine, ids: object) -> None:
        self._begin_forward(self._state, 1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_forward_chunk", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(chat, RUNS_ON, 6)
    assert ask(chat, RUNS_ON, 6).token_ids == expected.token_ids

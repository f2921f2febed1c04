"""Conversations of other protocols: parts with their media, blocks as lines."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.conversation import Conversation, in_lines
from gemma4_compile.runtime.server.media import MAX_MEDIA, GivenMedium

PICTURE = GivenMedium("image", "a", "data:,")


def test_media_know_their_places() -> None:
    conversation = Conversation()
    conversation.add(Message("system", "s"))
    conversation.add(Message("user", ""), ["look", PICTURE, "well?"])
    assert conversation.messages[1] == Message("user", "lookwell?", parts=("look", "", "well?"))
    assert [(one.message, one.part) for one in conversation.media()] == [(1, 1)]


def test_calls_are_known_to_what_follows() -> None:
    conversation = Conversation()
    conversation.add(Message("assistant", "", tool_calls=(ToolCall("f", {}, "1"), ToolCall("g"))))
    assert conversation.calls == {"1"}


def test_too_many_media_are_refused() -> None:
    conversation = Conversation()
    conversation.add(Message("user", ""), [PICTURE] * (MAX_MEDIA + 1))
    with pytest.raises(ApiError, match=f"at most {MAX_MEDIA}"):
        conversation.media()


def test_texts_in_a_row_begin_lines_of_their_own() -> None:
    assert in_lines(["a", "b\n", "c", "", PICTURE, "d", "e"]) == ["a\nb\nc", PICTURE, "d\ne"]

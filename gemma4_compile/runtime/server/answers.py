"""The API's answers: JSON objects of whole replies and of the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from gemma4_compile.runtime.generation import Generation
from gemma4_compile.runtime.reply import Event, TextDelta, ThoughtDelta
from gemma4_compile.runtime.tool_calls import ToolCall


def finish_reason(generation: Generation) -> str:
    """OpenAI's word for why a reply ended."""
    if generation.finish_reason == "context":
        return "length"
    if generation.finish_reason == "stop" and generation.tool_calls:
        return "tool_calls"
    return generation.finish_reason


def usage(generation: Generation) -> dict[str, Any]:
    """Tokens of the prompt and of the reply."""
    reply_tokens = len(generation.token_ids)
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": reply_tokens,
        "total_tokens": generation.prompt_tokens + reply_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.reused_tokens},
    }


@dataclass
class ChatAnswer:
    """Answers of `/v1/chat/completions`; the ids stay the same through a stream."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _calls: int = 0

    def whole(self, generation: Generation) -> dict[str, Any]:
        """A finished reply."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if generation.tool_calls and not generation.text else generation.text,
            "refusal": None,
        }
        if generation.thought:
            message["reasoning_content"] = generation.thought
        if generation.tool_calls:
            message["tool_calls"] = [_call(call) for call in generation.tool_calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(generation),
        }
        return self._object("chat.completion", [choice]) | {"usage": usage(generation)}

    def first(self) -> dict[str, Any]:
        """The chunk that opens a stream."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def chunk(self, event: Event) -> dict[str, Any]:
        """A chunk with more of the reply."""
        if isinstance(event, TextDelta):
            return self._chunk({"content": event.text}, None)
        if isinstance(event, ThoughtDelta):
            return self._chunk({"reasoning_content": event.text}, None)
        self._calls += 1
        return self._chunk({"tool_calls": [{"index": self._calls - 1, **_call(event)}]}, None)

    def last(self, generation: Generation) -> dict[str, Any]:
        """The chunk that says why the reply ended."""
        return self._chunk({}, finish_reason(generation))

    def count(self, generation: Generation) -> dict[str, Any]:
        """The chunk that counts tokens."""
        return self._object("chat.completion.chunk", []) | {"usage": usage(generation)}

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


@dataclass
class TextAnswer:
    """Answers of `/v1/completions`."""

    model: str
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, generation: Generation) -> dict[str, Any]:
        """A finished text."""
        answer = self._object(generation.text, finish_reason(generation))
        return answer | {"usage": usage(generation)}

    def first(self) -> None:
        """Nothing opens a stream of text."""

    def chunk(self, event: Event) -> dict[str, Any]:
        """A chunk with more of the text."""
        assert isinstance(event, TextDelta), "a plain generation has no other parts"
        return self._object(event.text, None)

    def last(self, generation: Generation) -> dict[str, Any]:
        """The chunk that says why the text ended."""
        return self._object("", finish_reason(generation))

    def count(self, generation: Generation) -> dict[str, Any]:
        """The chunk that counts tokens."""
        return self._object("", None) | {"choices": [], "usage": usage(generation)}

    def _object(self, text: str, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id or f"call_{uuid.uuid4().hex}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments_json()},
    }


Answer = ChatAnswer | TextAnswer

"""Answers of Ollama's API: one object, or one a line."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone

from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.reply.declared_values import as_declared
from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.logprobs import ReplyLogprobs
from gemma4_compile.runtime.server.server_sent import one_line
from gemma4_compile.types import JsonObject

Shape = Callable[[str, str, Sequence[JsonObject]], JsonObject]
"""Where an endpoint has a text, reasoning, and calls."""


def of_chat(text: str, thinking: str, calls: Sequence[JsonObject]) -> JsonObject:
    """A message."""
    message: JsonObject = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def of_generate(text: str, thinking: str, _: Sequence[JsonObject]) -> JsonObject:
    """A response."""
    return {"response": text, "thinking": thinking} if thinking else {"response": text}


class OllamaAnswer:
    """One reply."""

    def __init__(
        self,
        model: str,
        shape: Shape,
        *,
        note: str | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        logprobs: ReplyLogprobs | None = None,
    ) -> None:
        """Prepare.

        Parameters
        ----------
        shape : `of_chat` or `of_generate`
        note : what the client should know, besides the answer; or None
        tools : declarations, whose types calls are given out with
        logprobs : of the answer's tokens, if they are to be told: at its end
        """
        self._logprobs = logprobs
        self._model, self._shape, self._note, self._tools = model, shape, note, tools
        self._begun = time.perf_counter()
        self._calls = 0

    def whole(self, events: Sequence[Event], generation: Generation) -> JsonObject:
        """All of it, of its events."""
        calls = [call for event in events for call in self._called(event)]
        told = self._shape(generation.text, generation.reasoning, calls)
        return self._object(told) | self._last(generation)

    def begin(self) -> Iterator[str]:
        """Nothing opens a stream."""
        yield from ()

    def push(self, event: Event) -> Iterator[str]:
        """A line with more of it."""
        text = event.text if isinstance(event, TextDelta) else ""
        thinking = event.text if isinstance(event, ReasoningDelta) else ""
        told = self._shape(text, thinking, self._called(event))
        yield _line(self._object(told) | {"done": False})

    def pause(self) -> Iterator[str]:
        """A space, with which the next line begins: no line says nothing, and none may be empty."""
        yield " "

    def end(self, generation: Generation) -> Iterator[str]:
        """The line that counts."""
        yield _line(self._object(self._shape("", "", ())) | self._last(generation))

    def fail(self, error: ApiError) -> Iterator[str]:
        """An error in the midst of it."""
        yield _line({"error": error.told})

    def without_reply(self, reason: str) -> JsonObject:
        """Where nothing was asked."""
        return self._object(self._shape("", "", ())) | {"done": True, "done_reason": reason}

    def _called(self, event: Event) -> list[JsonObject]:
        if isinstance(event, (TextDelta, ReasoningDelta)):
            return []
        call = as_declared(event, self._tools)
        index, self._calls = self._calls, self._calls + 1
        function = {"index": index, "name": call.name, "arguments": call.arguments}
        return [{"id": call.call_id or f"call_{uuid.uuid4().hex}", "function": function}]

    def _last(self, generation: Generation) -> JsonObject:
        told: JsonObject = {}
        if self._logprobs is not None:
            told["logprobs"] = self._logprobs.chat(len(generation.token_ids))["content"]
        return told | {
            "done": True,
            "done_reason": "stop" if generation.finish_reason == "stop" else "length",
            "total_duration": _nanoseconds(time.perf_counter() - self._begun),
            "load_duration": 0,
            "prompt_eval_count": generation.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(generation.first_token_s),
            "eval_count": len(generation.token_ids),
            "eval_duration": _nanoseconds(generation.decode_s),
        }

    def _object(self, told: JsonObject) -> JsonObject:
        values = {"model": self._model, "created_at": now(), **told}
        return values if self._note is None else values | {"note": self._note}


def now(later_s: float = 0.0) -> str:
    """The time, or the one so many seconds later, as Go writes it."""
    found = datetime.now(timezone.utc) + timedelta(seconds=later_s)
    return found.isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _line(content: JsonObject) -> str:
    return one_line(content) + "\n"

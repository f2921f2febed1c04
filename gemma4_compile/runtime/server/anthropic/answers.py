"""Answers of `/v1/messages`: a whole message, or the events of its stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.reply.declared_values import as_declared
from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.anthropic.errors import error_body
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.server_sent import named_event
from gemma4_compile.types import JsonObject

# Clients send thinking back as the model's answer, or leave it out, where it has no signature.
_SIGNATURE = "dW5zaWduZWQ="  # `unsigned`, in base64 as Anthropic's are; nobody looks at it here
_REASONS = {"context": "model_context_window_exceeded", "length": "max_tokens"}


class MessageAnswer:
    """One message of the model, block by block."""

    def __init__(
        self,
        model: str,
        prompt_tokens: int,
        note: str | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        *,
        shows_thinking: bool = True,
    ) -> None:
        """Prepare.

        Parameters
        ----------
        note : what the client should know, besides the answer; or None
        tools : declarations, whose types calls are given out with
        shows_thinking : whether blocks of thinking say what was thought
        """
        self._model, self._prompt_tokens, self._note = model, prompt_tokens, note
        self._tools, self._shows_thinking = tools, shows_thinking
        self._id = f"msg_{uuid.uuid4().hex}"
        self._open: str | None = None  # the kind of the block that is not closed yet
        self._index = -1

    def whole(self, events: Sequence[Event], generation: Generation) -> JsonObject:
        """The finished message, of events that are joined."""
        return {
            **self._message([self._block(event) for event in events]),
            **_ended(generation),
            "usage": _usage(generation),
        }

    def begin(self) -> Iterator[str]:
        """The message without content, and a ping."""
        usage = {
            "input_tokens": self._prompt_tokens,
            "output_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }
        message = {
            **self._message([]),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message=message)
        yield _event("ping")

    def push(self, event: Event) -> Iterator[str]:
        """More of a block; the beginning of the next where the kind is another one."""
        if isinstance(event, ToolCall):
            block = self._block(event)
            yield from self._start("tool_use", {**block, "input": {}})
            arguments = as_declared(event, self._tools).arguments_json()
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})
            yield from self._close()
        elif isinstance(event, TextDelta):
            if self._open != "text":
                yield from self._start("text", self._block(TextDelta("")))
            yield self._delta({"type": "text_delta", "text": event.text})
        else:
            if self._open != "thinking":
                yield from self._start(
                    "thinking", self._block(ReasoningDelta("")) | {"signature": ""}
                )
            if self._shows_thinking:
                yield self._delta({"type": "thinking_delta", "thinking": event.text})

    def pause(self) -> Iterator[str]:
        """As Anthropic's servers write it."""
        yield _event("ping")

    def end(self, generation: Generation) -> Iterator[str]:
        """Why it ended, and its tokens."""
        yield from self._close()
        yield _event("message_delta", delta=_ended(generation), usage=_usage(generation))
        yield _event("message_stop")

    def fail(self, error: ApiError) -> Iterator[str]:
        """An error in the midst of it."""
        yield named_event("error", error_body(error))

    def _start(self, kind: str, block: JsonObject) -> Iterator[str]:
        yield from self._close()
        self._open = kind
        self._index += 1
        yield _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> Iterator[str]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        self._open = None
        yield _event("content_block_stop", index=self._index)

    def _delta(self, delta: JsonObject) -> str:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _block(self, event: Event) -> JsonObject:
        if isinstance(event, TextDelta):
            return {"type": "text", "text": event.text}
        if isinstance(event, ReasoningDelta):
            thought = event.text if self._shows_thinking else ""
            return {"type": "thinking", "thinking": thought, "signature": _SIGNATURE}
        call = as_declared(event, self._tools)
        return {
            "type": "tool_use",
            "id": call.call_id or f"toolu_{uuid.uuid4().hex}",
            "name": call.name,
            "input": call.arguments,
        }

    def _message(self, content: Sequence[JsonObject]) -> JsonObject:
        message: JsonObject = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(content),
        }
        return message if self._note is None else message | {"note": self._note}


def _ended(generation: Generation) -> JsonObject:
    reason = _REASONS.get(generation.finish_reason)
    if reason is None:
        if generation.stop.found is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if generation.tool_calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": generation.stop.found}


def _usage(generation: Generation) -> JsonObject:
    """Tokens; those of the prompt that were held already are no `input_tokens`."""
    return {
        "input_tokens": generation.prompt_tokens - generation.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": generation.reused_tokens,
        "output_tokens": len(generation.token_ids),
    }


def _event(kind: str, **fields: object) -> str:
    return named_event(kind, {"type": kind, **fields})

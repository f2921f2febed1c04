"""The API's answers: JSON objects of whole replies and of the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.reply.declared_values import as_declared
from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.custom_tools import custom_text
from gemma4_compile.runtime.server.logprobs import ReplyLogprobs
from gemma4_compile.types import JsonObject


def finish_reason(generation: Generation) -> str:
    """OpenAI's word for why a reply ended."""
    if generation.finish_reason == "context":
        return "length"
    if generation.finish_reason == "stop" and generation.tool_calls:
        return "tool_calls"
    return generation.finish_reason


def usage(generations: Sequence[Generation], of_a_prompt: int | None = None) -> JsonObject:
    """Tokens of the prompts and of the replies.

    Parameters
    ----------
    of_a_prompt : how many replies share a prompt; None: all of them
    """
    firsts = generations[:: of_a_prompt or len(generations)]
    prompt_tokens = sum(first.prompt_tokens for first in firsts)
    reply_tokens = sum(len(generation.token_ids) for generation in generations)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": reply_tokens,
        "total_tokens": prompt_tokens + reply_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(first.reused_tokens for first in firsts)},
        **_predictions(generations),
    }


def _predictions(generations: Sequence[Generation]) -> JsonObject:
    """Guesses that came true and that did not, in OpenAI's words; none without a drafter."""
    counts = [one.drafting for one in generations if one.drafting is not None]
    if not counts:
        return {}
    accepted = sum(one.accepted for one in counts)
    details = {
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": sum(one.guessed for one in counts) - accepted,
    }
    return {"completion_tokens_details": details}


@dataclass
class ChatAnswer:
    """Answers of `/v1/chat/completions`; the ids stay the same through a stream.

    Attributes
    ----------
    note : what the client should know, besides the answer; or None
    tools : declarations, whose types calls are given out with
    custom : names of those whose calls are given out as a text
    """

    model: str
    note: str | None = None
    tools: Sequence[Mapping[str, object]] = ()
    custom: Set[str] = frozenset()
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _calls: dict[int, int] = field(default_factory=dict)

    def whole(
        self, generations: Sequence[Generation], logprobs: Sequence[ReplyLogprobs | None]
    ) -> JsonObject:
        """Finished replies."""
        choices = []
        for index, generation in enumerate(generations):
            empty = generation.tool_calls and not generation.text
            message: JsonObject = {
                "role": "assistant",
                "content": None if empty else generation.text,
                "refusal": None,
            }
            if generation.reasoning:
                message["reasoning_content"] = generation.reasoning
            if generation.tool_calls:
                message["tool_calls"] = [self._call(call) for call in generation.tool_calls]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(logprobs[index], len(generation.token_ids)),
                    "finish_reason": finish_reason(generation),
                }
            )
        return self._object("chat.completion", choices) | {"usage": usage(generations)}

    def first(self, index: int, _: ReplyLogprobs | None = None) -> JsonObject:
        """The chunk that opens a reply of a stream."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def begun(self, index: int, logprobs: ReplyLogprobs | None) -> JsonObject | None:
        """The chunk that comes once the prompt has been read; a chat's has nothing to say."""
        del index, logprobs
        return None

    def chunk(
        self, index: int, event: Event, logprobs: ReplyLogprobs | None, tokens: int
    ) -> JsonObject:
        """A chunk with more of a reply, which has so many tokens by now."""
        if isinstance(event, TextDelta):
            logprob_object = self._logprobs(logprobs, tokens)
            return self._chunk(index, {"content": event.text}, None, logprob_object)
        if isinstance(event, ReasoningDelta):
            return self._chunk(index, {"reasoning_content": event.text}, None, None)
        number = self._calls.get(index, 0)
        self._calls[index] = number + 1
        calls = [{"index": number, **self._call(event)}]
        return self._chunk(index, {"tool_calls": calls}, None, None)

    def pause(self, index: int) -> JsonObject:
        """A chunk of nothing: some clients take a comment for an event without JSON."""
        return self._chunk(index, {}, None, None)

    def last(
        self, index: int, generation: Generation, _: ReplyLogprobs | None = None
    ) -> JsonObject:
        """The chunk with the reason why a reply ended."""
        return self._chunk(index, {}, finish_reason(generation), None)

    def count(self, generations: Sequence[Generation]) -> JsonObject:
        """The chunk that counts tokens."""
        return self._object("chat.completion.chunk", []) | {"usage": usage(generations)}

    def _call(self, call: ToolCall) -> JsonObject:
        declared = as_declared(call, self.tools)
        return _call(declared, is_custom=declared.name in self.custom)

    @staticmethod
    def _logprobs(logprobs: ReplyLogprobs | None, tokens: int) -> JsonObject | None:
        return None if logprobs is None else logprobs.chat(tokens)

    def _chunk(
        self, index: int, delta: JsonObject, reason: str | None, logprobs: JsonObject | None
    ) -> JsonObject:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[JsonObject]) -> JsonObject:
        return _object(self, kind, choices)


@dataclass
class TextAnswer:
    """Answers of `/v1/completions`; its parts are those of `ChatAnswer`.

    Attributes
    ----------
    of_a_prompt : how many replies each prompt has, one after another
    echoed : what those of each prompt begin with
    """

    model: str
    note: str | None = None
    of_a_prompt: int = 1
    echoed: Sequence[str] = ()
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(
        self, generations: Sequence[Generation], logprobs: Sequence[ReplyLogprobs | None]
    ) -> JsonObject:
        """Finished texts."""
        choices = []
        for index, generation in enumerate(generations):
            told, tokens = logprobs[index], len(generation.token_ids)
            logprob_object = None if told is None else told.whole(tokens, generation.text)
            text = self._echo(index) + generation.text
            choices.append(self._choice(index, text, finish_reason(generation), logprob_object))
        return self._object(choices) | {"usage": usage(generations, self.of_a_prompt)}

    def first(self, index: int, logprobs: ReplyLogprobs | None = None) -> JsonObject | None:
        """The prompt, where it is repeated as it is; else nothing opens a stream of text."""
        echo = self._echo(index)
        if not echo or (logprobs is not None and logprobs.echoes):
            return None
        return self._object([self._choice(index, echo, None, None)])

    def begun(self, index: int, logprobs: ReplyLogprobs | None) -> JsonObject | None:
        """The prompt with its log probabilities, once it has been read."""
        if logprobs is None or not logprobs.echoes:
            return None
        return self._object([self._choice(index, self._echo(index), None, logprobs.prompt())])

    def _echo(self, index: int) -> str:
        return self.echoed[index // self.of_a_prompt] if self.echoed else ""

    def chunk(
        self, index: int, event: Event, logprobs: ReplyLogprobs | None, tokens: int
    ) -> JsonObject:
        """A chunk with more of a text."""
        assert isinstance(event, TextDelta), "a plain generation has no other parts"
        logprob_object = None if logprobs is None else logprobs.text(tokens)
        return self._object([self._choice(index, event.text, None, logprob_object)])

    def pause(self, index: int) -> JsonObject:
        """A chunk of nothing."""
        return self._object([self._choice(index, "", None, None)])

    def last(
        self, index: int, generation: Generation, logprobs: ReplyLogprobs | None = None
    ) -> JsonObject:
        """The chunk with the reason why a text ended, and the tokens that no text came with."""
        told = None
        if logprobs is not None:
            rest = logprobs.text(len(generation.token_ids), generation.text)
            told = rest if rest["tokens"] else None
        return self._object([self._choice(index, "", finish_reason(generation), told)])

    def count(self, generations: Sequence[Generation]) -> JsonObject:
        """The chunk that counts tokens."""
        return self._object([]) | {"usage": usage(generations, self.of_a_prompt)}

    @staticmethod
    def _choice(
        index: int, text: str, reason: str | None, logprobs: JsonObject | None
    ) -> JsonObject:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _object(self, choices: list[JsonObject]) -> JsonObject:
        return _object(self, "text_completion", choices)


def _object(answer: Answer, kind: str, choices: list[JsonObject]) -> JsonObject:
    values: JsonObject = {
        "id": answer.id,
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }
    return values if answer.note is None else values | {"note": answer.note}


def _call(call: ToolCall, *, is_custom: bool) -> JsonObject:
    kind, told = "function", {"name": call.name, "arguments": call.arguments_json()}
    if is_custom:
        kind, told = "custom", {"name": call.name, "input": custom_text(call)}
    return {"id": call.call_id or f"call_{uuid.uuid4().hex}", "type": kind, kind: told}


Answer = ChatAnswer | TextAnswer

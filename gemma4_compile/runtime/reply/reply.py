r"""Takes a reply apart as its tokens come: reasoning, the answer's text, tool calls.

The model marks the parts with tokens of their own, so a text that merely spells such a mark changes
nothing. Reasoning is ``<|channel>thought\nTEXT\n<channel|>``, a call is
``<|tool_call>call:NAME{...}<tool_call|>``; everything else is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from gemma4_compile.runtime.reply.detokenizer import REPLACEMENT, StreamingDetokenizer
from gemma4_compile.runtime.reply.tool_calls import ToolCall, ToolCallError, parse_tool_calls

OPEN_CHANNEL, CLOSE_CHANNEL = "<|channel>", "<channel|>"
OPEN_CALL, CLOSE_CALL = "<|tool_call>", "<tool_call|>"
QUOTE = '<|"|>'
_REASONING_HEAD = "thought\n"
# A call ends with a bracket, and maybe with what stands between two calls, or a mark of Markdown.
_ENDS_OF_CALLS = frozenset("}]),;`")
_MOST_READS = 64  # of a call that has no end, each of which goes through all of it


@dataclass(frozen=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


Event = TextDelta | ReasoningDelta | ToolCall


@dataclass(frozen=True)
class MarkIds:
    """Ids of the tokens that mark the parts of a reply; None for those a tokenizer lacks."""

    open_channel: int | None
    close_channel: int | None
    open_call: int | None
    close_call: int | None
    quote: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> MarkIds:
        """Look the marks up."""
        marks = (OPEN_CHANNEL, CLOSE_CHANNEL, OPEN_CALL, CLOSE_CALL, QUOTE)
        return cls(*(tokenizer.token_to_id(mark) for mark in marks))

    def reasoning_is_open(self, ids: list[int]) -> bool:
        """Return whether a prompt ends inside reasoning, which the reply then goes on with."""
        if self.open_channel is None or self.open_channel not in ids:
            return False
        backwards = ids[::-1]
        return self.close_channel not in backwards[: backwards.index(self.open_channel)]


class ReplyParser:
    """Token ids in, events out; nothing is emitted before it is certain what it belongs to."""

    def __init__(self, tokenizer: Tokenizer, *, in_reasoning: bool = False) -> None:
        """Begin a reply; `in_reasoning` where the prompt has opened it with its first line."""
        self._tokenizer = tokenizer
        self._ids = MarkIds.of(tokenizer)
        self._decoder = StreamingDetokenizer(tokenizer)
        self._in_reasoning = in_reasoning
        self._head_done = in_reasoning
        self._held = ""  # of reasoning: its first line in part, or what may be its last newline
        self._call: list[int] | None = None
        self._reads = 0  # of this call, before it ended

    def push(self, token_id: int) -> list[Event]:
        """Events that this token completes."""
        ids = self._ids
        if self._call is not None:
            if token_id == ids.close_call:
                return self._end_call(CLOSE_CALL)
            if token_id == ids.open_call:  # the model left the end of the one before out
                events = self._end_call()
                self._begin_call()
                return events
            if token_id == ids.open_channel and (calls := self._unended(self._call)):
                self._call = None  # nor did it end this one before it went on to reason
                return [*calls, *self.push(token_id)]
            self._call.append(token_id)
            return []
        if token_id == ids.open_channel:
            events = self._end_part()
            self._in_reasoning, self._head_done = True, False
            return events
        if token_id == ids.close_channel:
            events = self._end_part()
            self._in_reasoning = False
            return events
        if token_id == ids.open_call:
            events = self._end_part()
            self._in_reasoning = False
            self._begin_call()
            return events
        return self._text(self._decoder.push(token_id))

    def finish(self) -> list[Event]:
        """Events of what was still held back; a call that is not whole becomes text."""
        return self._end_part() if self._call is None else self._end_call()

    def _text(self, text: str) -> list[Event]:
        if not self._in_reasoning:
            return [TextDelta(text)] if text else []
        self._held += text
        if not self._head_done:
            if _REASONING_HEAD.startswith(self._held) and self._held != _REASONING_HEAD:
                return []
            self._held = self._held.removeprefix(_REASONING_HEAD)
            self._head_done = True
        # The last newline before the end is the format's; until then any newline may be that one.
        ready = self._held.rstrip("\n")
        self._held = self._held[len(ready) :]
        return [ReasoningDelta(ready)] if ready else []

    def _end_part(self) -> list[Event]:
        """Close the text or reasoning that is open."""
        events = self._text(self._decoder.flush())
        if self._in_reasoning:
            rest = self._held
            if not self._head_done and _REASONING_HEAD.startswith(rest + "\n"):
                rest = ""  # `thought` without a line of its own
            rest = rest.removesuffix("\n")
            self._held = ""
            if rest:
                events.append(ReasoningDelta(rest))
        return events

    def _begin_call(self) -> None:
        self._call, self._reads = [], 0

    def _unended(self, ids: list[int]) -> list[ToolCall]:
        """The calls that these tokens are, if the model left their end out; else none.

        A model that opens channel after channel within a call is not to cost the square of its
        length: what cannot be the end of a call is not read, nor all of it again and again.
        """
        if self._reads == _MOST_READS or not self._may_end(ids):
            return []
        self._reads += 1
        return self._read(ids, is_whole=False)

    def _may_end(self, ids: list[int]) -> bool:
        """Return whether the last letter of a call is one that a call ends with.

        What was read before ends with a channel's token at the latest, which is none.
        """
        for token_id in reversed(ids):
            text = self._tokenizer.decode([token_id], skip_special_tokens=False).rstrip()
            if text:  # a part of a character may be of a space
                return text[-1] in _ENDS_OF_CALLS or text[-1] == REPLACEMENT
        return False

    def _end_call(self, close: str = "") -> list[Event]:
        """The calls between two marks; where they cannot be read, the model's own words."""
        assert self._call is not None, "only called inside a call"
        ids, self._call = self._call, None
        calls = self._read(ids, is_whole=bool(close))
        if calls:
            return [*calls]
        thought, rest = self._parted(ids)
        if thought and (calls := self._read(rest, is_whole=bool(close))):
            return [*thought, *calls]
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        return [TextDelta(OPEN_CALL + text + close)]

    def _read(self, ids: list[int], *, is_whole: bool) -> list[ToolCall]:
        """The calls that these tokens are; none if they cannot be read as such."""
        try:
            return parse_tool_calls(self._split(ids), is_whole=is_whole)
        except ToolCallError:
            return []

    def _parted(self, ids: list[int]) -> tuple[list[Event], list[int]]:
        """Reasoning that stands within a call, and the tokens around it."""
        thought: list[Event] = []
        rest: list[int] = []
        close = self._ids.close_channel
        last = max((i for i, token_id in enumerate(ids) if token_id == close), default=-1)
        at = 0
        while at < len(ids):
            if ids[at] != self._ids.open_channel or at > last:
                rest.append(ids[at])
                at += 1
                continue
            assert close is not None, "it is among the tokens"
            end = ids.index(close, at)
            parser = ReplyParser(self._tokenizer)
            for token_id in ids[at : end + 1]:
                thought += parser.push(token_id)
            at = end + 1
        return thought, rest

    def _split(self, ids: list[int]) -> list[str]:
        """Texts between the quote tokens."""
        parts: list[list[int]] = [[]]
        for token_id in ids:
            if token_id == self._ids.quote:
                parts.append([])
            else:
                parts[-1].append(token_id)
        return [self._tokenizer.decode(part, skip_special_tokens=False) for part in parts]


class PlainParser:
    """Takes every token as text; control tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decoder = StreamingDetokenizer(tokenizer)

    def push(self, token_id: int) -> list[Event]:
        """Text that this token completes."""
        text = self._decoder.push(token_id)
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        """Text that was held back."""
        text = self._decoder.flush()
        return [TextDelta(text)] if text else []

"""Finds out early that a conversation cannot fit: by how much it holds, and while it is rendered.

To render a conversation takes a template long where it is long, so what cannot fit is refused
before. Both counts are lower bounds: nothing is refused that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.template.watch import SlowRenderingError, Watch, watched
from gemma4_compile.types import JsonObject

FEW = 64
"""Messages, calls and results that are rendered without being counted."""
CHARACTERS_A_TOKEN = 4
"""Of a text that is not looked at while it is rendered: a longer one may well not fit."""
_TOKENS_OF_A_CUT = 64  # more than a cut through a word or a control token can add
_MOST_AT_A_TIME = 1 << 16  # characters that are encoded together
_SHORT, _LONG, _LONGEST = 8, 24, 128  # conversations that are compared
_STEADY = 0.9  # of what a part adds at first, what it adds later; less: some are left out
MEASURE_SECONDS = 2.0
"""For which a template is measured; a slower one is not counted, and watched all the same."""


class Counted(Protocol):
    """What is counted of a message."""

    @property
    def role(self) -> str:
        """Who says it."""

    @property
    def content(self) -> str:
        """Its text."""

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """The tools that it calls."""


@dataclass(frozen=True)
class Holds:
    """What a conversation holds, as far as every template writes it.

    Attributes
    ----------
    questions : of a user, with text
    calls, results : of tools, after a message that calls them
    """

    questions: int
    calls: int
    results: int

    @classmethod
    def of(cls, messages: Iterable[Counted]) -> Holds:
        """Count."""
        questions = calls = results = 0
        called = False
        for message in messages:
            if message.role == "tool":
                results += called
                continue
            questions += message.role == "user" and bool(message.content.strip())
            calls += len(message.tool_calls)
            called = bool(message.tool_calls)
        return cls(questions, calls, results)


@dataclass(frozen=True)
class Fewest:
    """Fewest tokens that a question, a call and a result take in a template.

    They are the difference between longer and shorter conversations of next to no words. A template
    that refuses these, or does not write what is counted, all of it, has 0.
    """

    question: int
    call: int
    result: int

    @classmethod
    def of(cls, template: ChatTemplate, count: Callable[[str], int]) -> Fewest:
        """Render and compare."""
        if template.largest_integer > _LONGEST:  # it may keep so many of the last messages
            return cls(0, 0, 0)
        try:
            with watched(Watch(MEASURE_SECONDS), lambda: lambda _: None):
                return cls._measured(template, count)
        except SlowRenderingError:
            return cls(0, 0, 0)

    @classmethod
    def _measured(cls, template: ChatTemplate, count: Callable[[str], int]) -> Fewest:
        def added(conversation: Callable[[int], list[_Said]]) -> int | None:
            try:
                short, long, longest = (
                    count(template.render(conversation(size))) for size in (_SHORT, _LONG, _LONGEST)
                )
            except UsageError:
                return None
            first, later = (long - short) / (_LONG - _SHORT), (longest - long) / (_LONGEST - _LONG)
            return max(0, int(min(first, later))) if later >= _STEADY * first else 0

        def fewest(*conversations: Callable[[int], list[_Said]], default: int = 0) -> int:
            return min((n for n in map(added, conversations) if n is not None), default=default)

        asked, answered = _Said("user", "a"), _Said("assistant", "a")
        round_of_tools = [_calling(1), *_results(1)]
        question = fewest(
            lambda size: [asked] * size,
            lambda size: [*[asked, answered] * size, asked],
        )
        call = fewest(
            lambda size: [asked, _calling(size)],
            lambda size: [asked, _calling(size), asked],
            lambda size: [asked, _calling(size), answered, asked],
        )
        result = fewest(
            lambda size: [asked, _calling(size), *_results(size)],
            lambda size: [asked, _calling(_SHORT), *_results(size)],
            lambda size: [asked, _calling(_SHORT), *_results(size), answered, asked],
        )
        # Rounds of earlier questions may be left out, or take less than a call and a result apart.
        both = fewest(lambda size: [asked, *round_of_tools * size], default=call + result)
        asking = fewest(
            lambda size: [*[asked, *round_of_tools] * size, asked],
            lambda size: [*[asked, *round_of_tools, answered] * size, asked],
            default=question + both,
        )
        both = max(0, min(both, asking - question, call + result))
        return cls(
            question=min(question, asking), call=min(call, both), result=both - min(call, both)
        )

    def tokens(self, holds: Holds) -> int:
        """Tokens that are certain."""
        return (
            holds.questions * self.question + holds.calls * self.call + holds.results * self.result
        )


class TokenCount:
    """Counts the tokens of a text while it grows; it may count fewer, but not more."""

    def __init__(self, room: int, count: Callable[[str], int]) -> None:
        """Prepare.

        Parameters
        ----------
        room : most tokens; texts up to four times as many characters are not looked at
        count : tokens of a text at least
        """
        self._count = count
        self._step = min(CHARACTERS_A_TOKEN * room, _MOST_AT_A_TIME)
        self._unseen = CHARACTERS_A_TOKEN * room
        self._pieces: list[str] = []
        self._held = 0
        self.tokens = 0

    def add(self, piece: str) -> int:
        """Tokens so far, with this piece."""
        self._pieces.append(piece)
        self._held += len(piece)
        self._unseen -= len(piece)
        if self._unseen < 0 and self._held >= self._step:
            text = "".join(self._pieces)
            for begin in range(0, len(text), _MOST_AT_A_TIME):
                found = self._count(text[begin : begin + _MOST_AT_A_TIME])
                self.tokens += max(found - _TOKENS_OF_A_CUT, 0)
            self._pieces, self._held = [], 0
        return self.tokens


@dataclass(frozen=True)
class _Said:
    role: str
    content: str
    calls: int = 0
    call_id: str = ""

    def for_template(self) -> JsonObject:
        fields: JsonObject = {"role": self.role, "content": self.content}
        if self.calls:
            fields["tool_calls"] = [
                {
                    "id": f"c{index}",
                    "type": "function",
                    "function": {"name": "a", "arguments": {}},
                }
                for index in range(self.calls)
            ]
        if self.call_id:
            fields["tool_call_id"] = self.call_id
        return fields


def _calling(calls: int) -> _Said:
    return _Said("assistant", "", calls)


def _results(count: int) -> list[_Said]:
    return [_Said("tool", "", call_id=f"c{index % _SHORT}") for index in range(count)]

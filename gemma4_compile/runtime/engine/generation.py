"""Generates one reply after another on one engine; prompts that begin alike share their state."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator as Steps
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Literal, TypeAlias, cast

from tokenizers import Tokenizer

from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.engine.aside import Known
from gemma4_compile.runtime.engine.beginnings import Beginnings, beginning
from gemma4_compile.runtime.engine.chunks import chunks, whole_rows
from gemma4_compile.runtime.engine.media_prompt import Prompt, Tokens
from gemma4_compile.runtime.engine.next_token import Guessing, Held, NextToken, next_token
from gemma4_compile.runtime.engine.prompt_reading import (
    PromptProgress,
    PromptWatcher,
    read_chunks,
    read_tokens,
)
from gemma4_compile.runtime.engine.rows_due import RowsDue
from gemma4_compile.runtime.engine.sequence import ContextFullError
from gemma4_compile.runtime.engine.token_due import TokenDue
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.reply.reply import (
    Event,
    MarkIds,
    PlainParser,
    ReasoningDelta,
    ReplyParser,
    TextDelta,
)
from gemma4_compile.runtime.reply.stop_strings import StopStrings
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import Float32Array, PromptReader, TokenChooser
from gemma4_compile.runtime.speculative.draft_pace import Drafting, DraftPace

_OPEN_TOOL_RESPONSE = "<|tool_response>"
_log = logging.getLogger(__name__)

FinishReason = Literal["stop", "length", "context", "interrupted"]
Paused: TypeAlias = "Event | PromptProgress | RowsDue | TokenDue"


class Generator:
    """An engine, the ids that its state holds, and the media among them.

    Attributes
    ----------
    drafting : what became of guesses, of all replies so far
    pace : how many tokens are guessed in a round; None where there is no drafter
    """

    def __init__(
        self,
        engine: TokenEngine,
        tokenizer: Tokenizer,
        stop_ids: frozenset[int],
        media: MediaSettings | None = None,
        beginnings: Beginnings | None = None,
    ) -> None:
        """Take an engine over, whatever it holds.

        Parameters
        ----------
        stop_ids : tokens that end a reply; the one that asks for a tool's result always does
        media : what the engine's package takes besides text
        beginnings : where those of prompts are looked for besides in the engine's state
        """
        self._beginnings = beginnings
        self._client: Hashable = None
        self._whole = media is not None and media.whole_images
        self.engine = engine
        self.tokenizer = tokenizer
        response = tokenizer.token_to_id(_OPEN_TOOL_RESPONSE)
        self.stop_ids = stop_ids if response is None else stop_ids | {response}
        self.drafting = Drafting()
        self.pace: DraftPace | None = None
        if engine.rounds is not None and engine.rounds.most_drafts:
            self.pace = DraftPace.of(engine.rounds.drafts, engine.rounds.most_drafts)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.engine.clear()
        self._held = Held()

    def start(
        self,
        prompt: Tokens,
        chooser: TokenChooser,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        plain: bool = False,
        client: Hashable = None,
    ) -> Generation:
        """Begin a reply; it runs as the returned object is iterated.

        Parameters
        ----------
        prompt : ids of the whole prompt; a `Prompt` where there are media among them
        chooser : a `Sampler`
        max_tokens : most tokens of the reply; None for as many as fit
        stop : texts that end the answer
        plain : take everything as the answer's text, reasoning and calls included
        client : who asks; it learns what of its prompt the state held only if it asked before, too

        Raises
        ------
        ContextFullError
            If the prompt does not fit; nothing changes then.
        UsageError
            If a picture that must be whole does not fit into a chunk; nothing changes then.
        """
        prompt = Prompt.of(prompt)
        if len(prompt) > self.engine.context_length:
            raise ContextFullError.of_prompt(len(prompt), self.engine.context_length)
        self._chunks(prompt, 0)
        parser: ReplyParser | PlainParser = PlainParser(self.tokenizer)
        if not plain:
            in_reasoning = MarkIds.of(self.tokenizer).reasoning_is_open(prompt.ids)
            parser = ReplyParser(self.tokenizer, in_reasoning=in_reasoning)
        return Generation(self, prompt, chooser, max_tokens, StopStrings(stop), parser, client)

    def cut(self, prompt: Prompt, begin: int) -> list[slice]:
        """The chunks of a prompt from `begin` on; UsageError as of `start`."""
        kept = self._beginnings
        places = () if kept is None else kept.places(prompt, begin, self.stop_ids)
        return self._chunks(prompt, begin, places)

    def _chunks(self, prompt: Prompt, begin: int, places: Sequence[int] = ()) -> list[slice]:
        most, rows = min(self.engine.prefill_chunk, self.engine.context_length), prompt.modalities()
        return chunks(rows, most, whole_images=self._whole, begin=begin, places=places)

    def take(self, client: Hashable) -> bool:
        """Make the state a client's; return whether it was that before."""
        was, self._client = self._client, client
        return client == was

    def rewind(self, prompt: Tokens) -> int:
        """Bring the state to what is held or kept of `prompt`; return how many tokens that is.

        At least one token of the prompt is left to run, for its logits.
        """
        prompt = Prompt.of(prompt)
        keys, held = prompt.keys(), self._held.keys
        shared = beginning(held, keys[:-1])
        if self._whole:
            shared = whole_rows(prompt.modalities(), shared)
        is_known = not self.is_interrupted and self.engine.length == len(held)
        self.leave(shared, later=True)
        placed = shared if is_known else 0
        if not placed or not self.engine.pop(len(held) - placed):
            shared = 0
        self._held.in_forward, kept = True, self._beginnings
        restored = None if kept is None else kept.restore(prompt, shared, placed)
        if restored is not None:
            shared, self._client = restored.length, restored.owner
        elif not shared:
            self.engine.clear()
        self._held = Held(keys[:shared])
        return shared

    def keep(self, rest: int) -> float:
        """Tell of the state after a chunk, before `rest` tokens; the seconds that it took."""
        begin = time.perf_counter()
        if self._beginnings is not None:
            self._beginnings.keep(self._held.keys, rest, self._client)
        self._held.prompt = None if rest else len(self._held.keys)
        return time.perf_counter() - begin

    def leave(self, shared: int, *, later: bool = False) -> None:
        """Tell that all but the first `shared` tokens of the state are about to go.

        Where it is not known what they are, as after an error, nothing is told; nor of a reply that
        the next prompt has in other words: nobody comes back to it. `later` as of `Beginnings`.
        """
        held = self.held_keys
        most = min(len(held), self._held.prompt or len(held))
        if self._beginnings is not None and shared < most and len(held) == self.engine.length:
            self._beginnings.leave(held, shared, self._client, later=later)

    def prefill(self, chunk: Prompt, *, as_token: bool = False) -> Float32Array:
        """Add one chunk, or one token as those of replies are; return the logits after it."""
        self._held.in_forward = True
        logits = self.engine.decode(chunk.ids[0]) if as_token else self.engine.prefill(chunk)
        self._held.end_forward(*chunk.keys())
        return logits

    def rows_due(self, rows: Prompt) -> RowsDue:
        """The place where the last rows of a prompt wait."""
        return RowsDue(self.engine, self._held, rows)

    def next_token(self, chooser: TokenChooser) -> NextToken:
        """The way to the tokens of a reply after the prompt that the state holds."""
        rounds, guessing = self.engine.rounds, None
        if rounds is not None and self.pace is not None:
            guessing = Guessing(rounds, self.pace, self.drafting)
        return next_token(self.engine, self._held, chooser, guessing)

    def token_due(self, way: NextToken, chooser: TokenChooser, last: int | None) -> TokenDue:
        """The place where a reply waits for the token after `last`."""
        return TokenDue(way, self._held, chooser, last)

    @property
    def is_interrupted(self) -> bool:
        """Return whether a forward has begun and not ended, so that nothing is known."""
        return self._held.in_forward

    @property
    def held_keys(self) -> Sequence[int]:
        """What the state holds, as `Prompt.keys` numbers it; nothing while that is not known."""
        return () if self.is_interrupted else self._held.keys

    def adopt(self, parent: Generator, count: int, shared: int) -> None:
        """Hear that the state is a copy of `count` tokens of another's, for the first `shared`."""
        self._held = Held(list(parent.held_keys[:count]), shared)  # the rest is the other's to keep
        self._client = parent._client

    def swap(self, known: Known) -> Known:
        """Be at another reply, outside of what one launched ahead; return what was known."""
        before = Known(self._held, self._client, self.drafting)
        self._held, self._client, self.drafting = known.held, known.client, known.drafting
        return before

    @property
    def is_full(self) -> bool:
        """Return whether no further token fits."""
        return len(self._held.keys) == self.engine.context_length


class Generation:
    """A reply in the making: iterate over its events, once.

    Attributes
    ----------
    token_ids : what was generated, stop token left out
    text, reasoning, tool_calls : its parts so far, as the events gave them
    finish_reason : a stop token or text, `max_tokens`, the end of the context, or a reader who
        stopped reading
    prompt_tokens, reused_tokens : length of the prompt, and how much of it was held or kept; 0
        where another client asked before
    stop : watches for texts that end the answer; `found` is the one that did
    first_token_s : seconds until the first token was chosen
    decode_s : seconds from then to the end, without those in which the prompt's end was kept
    drafting : the counts of its guesses, once it has ended; None where there is no drafter
    single_call : whether its first call ends it; may be set until it is iterated
    watch : hears of the prompt's tokens, which are read one by one then; may be set as long
    """

    def __init__(
        self,
        generator: Generator,
        prompt: Prompt,
        chooser: TokenChooser,
        max_tokens: int | None,
        stop: StopStrings,
        parser: ReplyParser | PlainParser,
        client: Hashable,
    ) -> None:
        self._generator, self._client = generator, client
        self._prompt, self._chooser = prompt, chooser
        self._max_tokens, self.stop = max_tokens, stop
        self._parser, self.token_ids = parser, list[int]()
        self.text = self.reasoning = ""
        self.tool_calls: list[ToolCall] = []
        self.finish_reason: FinishReason = "interrupted"
        self.prompt_tokens = len(prompt)
        self.reused_tokens = 0
        self.first_token_s = 0.0
        self.decode_s = 0.0
        self.drafting = None if generator.pace is None else Drafting()
        self.single_call = self._pauses = False
        self.watch: PromptWatcher | None = None
        self._events = self._run()

    def __iter__(self) -> Iterator[Event | PromptProgress]:
        """The events, as they come."""
        return cast("Iterator[Event | PromptProgress]", self._events)  # without pauses

    def pausing(self) -> Iterator[Paused]:
        """The events, and places to wait before a prompt's last rows and before every token."""
        self._pauses = True
        return self._events

    def close(self) -> None:
        """Stop here; what came so far is kept."""
        self._events.close()

    @property
    def decode_tokens_per_s(self) -> float:
        """Speed after the first token; 0 where there was no second one."""
        return (len(self.token_ids) - 1) / self.decode_s if len(self.token_ids) > 1 else 0.0

    def _run(self) -> Steps[Paused, None, None]:
        before = replace(self._generator.drafting)
        try:
            yield from self._reply()
        finally:  # the generator's counts go on with the next reply
            if self.drafting is not None:
                self.drafting = self._generator.drafting.since(before)
            _log.info("reply ended: %s, %d tokens", self.finish_reason, len(self.token_ids))

    def _reply(self) -> Steps[Paused, None, None]:
        begin = time.perf_counter()
        if isinstance(self._chooser, PromptReader):
            self._chooser.begin(self._prompt.ids)
        logits = yield from self._prefill()
        with closing(self._generator.next_token(self._chooser)) as way:
            stopped = yield from self._answer(way, logits, begin)
        reason, self.finish_reason = self.finish_reason, "interrupted"
        if not stopped:
            stopped = yield from self._emit(self._parser.finish())
        rest = self.stop.flush()
        if rest:
            self.text += rest
            yield TextDelta(rest)
        self.finish_reason = "stop" if stopped else reason

    def _answer(
        self, way: NextToken, logits: Float32Array, begin: float
    ) -> Steps[Event | TokenDue, None, bool]:
        """Tokens until one ends the reply; return whether a stop text or a call did."""
        if self._max_tokens == 0:
            self.finish_reason = "length"
            self._generator.keep(0)
            return False
        given = yield from self._given(way, None)
        token_id = way.first(logits) if given is None else given
        kept_s = 0.0
        while True:
            now = time.perf_counter()
            if not self.token_ids:
                self.first_token_s = now - begin
            self.decode_s = now - begin - self.first_token_s - kept_s
            if token_id in self._generator.stop_ids:
                self.finish_reason = "stop"
                break
            self.token_ids.append(token_id)
            stopped = yield from self._emit(self._parser.push(token_id))
            if len(self.token_ids) == 1:  # only now: to copy rings takes long
                kept_s = self._generator.keep(0)
            if stopped:
                self.finish_reason = "stop"
                return True
            if len(self.token_ids) == self._max_tokens:
                self.finish_reason = "length"
                break
            if self._generator.is_full:
                self.finish_reason = "context"
                break
            given = yield from self._given(way, token_id)
            token_id = way.after(token_id) if given is None else given
        if not self.token_ids:
            self._generator.keep(0)
        return False

    def _given(self, way: NextToken, last: int | None) -> Steps[TokenDue, None, int | None]:
        """The token after `last` where a step of several chose it."""
        if not self._pauses:
            return None
        due = self._generator.token_due(way, self._chooser, last)
        yield due
        return due.take()

    def _prefill(self) -> Steps[PromptProgress | RowsDue, None, Float32Array]:
        generator = self._generator
        if self.watch is not None:
            generator.take(self._client)
            return (yield from read_tokens(generator, self._prompt, self.watch))
        done = generator.rewind(self._prompt)
        self.reused_tokens = done if generator.take(self._client) else 0
        return (yield from read_chunks(generator, self._prompt, done, pauses=self._pauses))

    def _emit(self, events: list[Event]) -> Steps[Event, None, bool]:
        """Pass events on; return whether a stop text, or the only call, ended the answer."""
        for event in events:
            if isinstance(event, TextDelta):
                text, stopped = self.stop.push(event.text)
                self.text += text
                if text:
                    yield TextDelta(text)
                if stopped:
                    return True
                continue
            if isinstance(event, ReasoningDelta):
                self.reasoning += event.text
            else:
                self.tool_calls.append(event)
            yield event
            if self.single_call and self.tool_calls:
                return True
        return False

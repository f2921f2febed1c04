"""A conversation on one engine: several turns on one state, streamed, ended by stop tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemma4_compile.runtime.detokenizer import StreamingDetokenizer
from gemma4_compile.runtime.engine import ContextFullError, Engine, Float32Array
from gemma4_compile.runtime.package import Package
from gemma4_compile.runtime.prompt import (
    CLOSE_CHANNEL,
    OPEN_CHANNEL,
    ChatTemplate,
    Message,
    PromptBuilder,
)

_CONTEXT_HINT = "start a new conversation, or compile with a larger --context-length"

TokenChooser = Callable[[Float32Array], int]
"""Chooses a token id from logits (vocab_size,): a `Sampler`."""

FinishReason = Literal["stop", "length", "context"]


@dataclass(frozen=True)
class Reply:
    """A finished reply.

    Attributes
    ----------
    text : what was streamed
    token_ids : what was generated, stop token left out
    finish_reason : a stop token, `max_tokens`, or the end of the context
    prompt_tokens : length of the whole prompt
    reused_tokens : how many of them the state already held
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    reused_tokens: int


class Chat:
    """The messages so far and the engine that holds them.

    Attributes
    ----------
    messages : system message, questions and replies in order
    last_reply : the latest reply that ended; None before the first
    """

    def __init__(self, engine: Engine, package: Package, *, system: str | None = None) -> None:
        """Begin a conversation on `engine`, whatever it held before.

        Raises
        ------
        ArtifactError
            If the package's tokenizer or chat template is missing or damaged.
        """
        self._engine = engine
        self._tokenizer = package.load_tokenizer()
        template = ChatTemplate(package.load_chat_template(), package.special_tokens())
        self._prompt = PromptBuilder(self._tokenizer, template, thinking=False)
        self._stop_ids = package.stop_token_ids
        self._channel_ids = (
            self._tokenizer.token_to_id(OPEN_CHANNEL),
            self._tokenizer.token_to_id(CLOSE_CHANNEL),
        )
        self._system = system
        self._held: list[int] = []  # ids in the engine's state
        self.messages: list[Message] = []
        self.last_reply: Reply | None = None
        self.clear()

    @classmethod
    def open(
        cls, directory: Path, *, system: str | None = None, context_length: int | None = None
    ) -> Chat:
        """Load a package and begin a conversation; errors as in Engine and Chat."""
        package = Package.open(directory)
        return cls(Engine(package, context_length=context_length), package, system=system)

    def clear(self) -> None:
        """Forget everything but the system message."""
        self._engine.clear()
        self._held = []
        self.last_reply = None
        self.messages = [] if self._system is None else [Message("system", self._system)]

    def stream(
        self, text: str, sampler: TokenChooser, *, max_tokens: int | None = None
    ) -> Iterator[str]:
        """Ask, and yield the reply as it comes; at the end `last_reply` and `messages` have it.

        A reply that the caller stops reading is kept as far as it came.

        Raises
        ------
        ContextFullError
            If the conversation with this question does not fit (nothing changes then), or the
            reply reaches the end of the context (what was generated is kept).
        """
        question = Message("user", text)
        prompt = self._prompt.build([*self.messages, question])
        if len(prompt) > self._engine.context_length:
            raise ContextFullError(
                f"the context is full: this conversation takes {len(prompt)} tokens, and the "
                f"context holds {self._engine.context_length}",
                hint=_CONTEXT_HINT,
            )
        reused = self._rewind(prompt)
        logits = self._engine.prefill(prompt[reused:])
        self._held = prompt
        self.messages.append(question)
        yield from self._generate(logits, sampler, max_tokens, reused)

    def _rewind(self, prompt: list[int]) -> int:
        """Bring the state back to what it shares with `prompt`; return how much that is.

        At least one token of the prompt is left to run, for its logits.
        """
        limit = min(len(self._held), len(prompt) - 1)
        shared = next((i for i in range(limit) if self._held[i] != prompt[i]), limit)
        interrupted = self._engine.length != len(self._held)
        if interrupted or shared == 0 or not self._engine.pop(len(self._held) - shared):
            self._engine.clear()
            shared = 0
        self._held = prompt[:shared]
        return shared

    def _generate(
        self, logits: Float32Array, sampler: TokenChooser, max_tokens: int | None, reused: int
    ) -> Iterator[str]:
        prompt_tokens = len(self._held)
        decoder = StreamingDetokenizer(self._tokenizer)
        ids: list[int] = []
        pieces: list[str] = []
        finish: FinishReason = "length"
        thinking = False
        try:
            while True:
                token_id = sampler(logits)
                if token_id in self._stop_ids:
                    finish = "stop"
                    break
                ids.append(token_id)
                if token_id in self._channel_ids:
                    thinking = token_id == self._channel_ids[0]
                elif not thinking:
                    pieces.append(decoder.push(token_id))
                    if pieces[-1]:
                        yield pieces[-1]
                if len(ids) == max_tokens:
                    break
                if len(self._held) == self._engine.context_length:
                    finish = "context"
                    break
                logits = self._engine.decode(token_id)
                self._held.append(token_id)
            pieces.append(decoder.flush())
            if pieces[-1]:
                yield pieces[-1]
        finally:
            text = "".join(pieces)
            self.last_reply = Reply(text, tuple(ids), finish, prompt_tokens, reused)
            self.messages.append(Message("assistant", text, tuple(ids)))
        if finish == "context":
            raise ContextFullError(
                f"the context is full: the reply was cut after {len(ids)} tokens, at "
                f"{self._engine.context_length} in all",
                hint=_CONTEXT_HINT,
            )

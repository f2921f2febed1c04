"""A conversation on one engine: several turns on one state, streamed, ended by stop tokens."""

from __future__ import annotations

from collections.abc import Generator as Steps
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemma4_compile.media.inputs import Medium
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import (
    FinishReason,
    Generation,
    Generator,
)
from gemma4_compile.runtime.engine.prompt_reading import PromptProgress
from gemma4_compile.runtime.engine.sequence import CONTEXT_HINT, ContextFullError
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.prefixes.kept import PrefixCache, kept_prefixes
from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from gemma4_compile.runtime.reply.reply import Event, TextDelta
from gemma4_compile.runtime.sampling.sampling import TokenChooser


@dataclass(frozen=True)
class Reply:
    """A finished reply.

    Attributes
    ----------
    text : the answer
    token_ids : what was generated, stop token left out
    finish_reason : a stop token, `max_tokens`, the end of the context, or a reader who stopped
    prompt_tokens : length of the whole prompt
    reused_tokens : how many of them the state already held
    reasoning : of the model, before it answered
    first_token_s : seconds until the first token
    tokens_per_s : speed after it; 0 where there was no second token
    tokens_per_step : tokens that a forward of the model gave, with guesses that came true; 0
        where nothing was guessed
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    reused_tokens: int
    reasoning: str = ""
    first_token_s: float = field(default=0.0, compare=False)
    tokens_per_s: float = field(default=0.0, compare=False)
    tokens_per_step: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, generation: Generation) -> Reply:
        """Reply of a generation that has ended."""
        drafting = generation.drafting
        guessed = drafting is not None and drafting.guessed > 0
        return cls(
            text=generation.text,
            token_ids=tuple(generation.token_ids),
            finish_reason=generation.finish_reason,
            prompt_tokens=generation.prompt_tokens,
            reused_tokens=generation.reused_tokens,
            reasoning=generation.reasoning,
            first_token_s=generation.first_token_s,
            tokens_per_s=generation.decode_tokens_per_s,
            tokens_per_step=drafting.tokens_per_step if drafting and guessed else 0.0,
        )


class Chat:
    """The messages so far and the engine that holds them.

    Attributes
    ----------
    messages : system message, questions and replies in order
    media : what the package takes besides text
    attached : media of the next question
    last_reply : the latest reply that ended; None before the first
    """

    def __init__(
        self,
        engine: Engine,
        package: Package,
        *,
        system: str | None = None,
        thinking: bool = False,
        literal_specials: bool = False,
        prefix_memory: int = 0,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        """Begin a conversation on `engine`, whatever it held before.

        Parameters
        ----------
        literal_specials : take control tokens in messages as text
        prefix_memory : bytes for beginnings of prompts, which a later one goes on from, also after
            `clear`: a system message, a document
        prefix_cache : a folder that has them for the next start, too; `close` ends that

        Raises
        ------
        ArtifactError
            If the package's tokenizer or chat template is missing or damaged.
        UsageError
            If the folder cannot be used.
        """
        tokenizer = package.load_tokenizer()
        template = package.chat_template()
        self._prompt = PromptBuilder(
            tokenizer,
            template,
            engine.context_length,
            literal_specials=literal_specials,
            media=engine.media,
        )
        kept = self._kept = kept_prefixes(engine, prefix_memory, prefix_cache)
        self._generator = Generator(
            engine,
            tokenizer,
            package.stop_token_ids,
            engine.media,
            None if kept is None else kept.of(engine),
        )
        self.media: MediaSettings = engine.media
        self._system = system
        self._thinking = thinking
        self.messages: list[Message] = []
        self.attached: list[Medium] = []
        self.last_reply: Reply | None = None
        self.clear()

    @property
    def keeps_beginnings(self) -> bool:
        """Return whether beginnings of prompts are kept: there is memory, and the library can."""
        return self._kept is not None

    def close(self) -> None:
        """Write what is still to be written to `prefix_cache`, the end of the conversation too."""
        if self._kept is None:
            return
        try:
            if self._kept.lasts:
                self._generator.leave(0)  # as `clear` does
        finally:
            self._kept.close()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        system: str | None = None,
        context_length: int | None = None,
        thinking: bool = False,
    ) -> Chat:
        """Load a package and begin a conversation; errors as in Engine and Chat."""
        package = Package.open(directory)
        engine = Engine(package, context_length=context_length)
        return cls(engine, package, system=system, thinking=thinking)

    def attach(self, medium: Medium) -> None:
        """Put a medium before the text of the next question."""
        self.attached.append(medium)

    def clear(self) -> None:
        """Forget everything but the system message, and what is kept of prompts' beginnings."""
        self.attached = []
        self._generator.leave(0)
        self._generator.clear()
        self.last_reply = None
        self.messages = [] if self._system is None else [Message("system", self._system)]

    @property
    def system(self) -> str | None:
        """The system message; a new one counts from the next question on, for all of them."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        said = self.messages if self._system is None else self.messages[1:]
        self._system = text
        self.messages = [*([] if text is None else [Message("system", text)]), *said]

    def restore(self, messages: Sequence[Message]) -> None:
        """Go on with another conversation: a system message or none, questions and replies."""
        first = messages[0] if messages else None
        self._system = first.content if first is not None and first.role == "system" else None
        self.clear()
        self.messages = list(messages)

    def forget_oldest(self) -> bool:
        """Drop the oldest question and its reply; False where there is none."""
        begin = 0 if self._system is None else 1
        if len(self.messages) < begin + 2:
            return False
        del self.messages[begin : begin + 2]
        return True

    def stream(
        self, text: str, sampler: TokenChooser, *, max_tokens: int | None = None
    ) -> Iterator[str]:
        """Ask, and yield the answer's text as it comes; otherwise as `events`."""
        for event in self.events(text, sampler, max_tokens=max_tokens):
            if isinstance(event, TextDelta):
                yield event.text

    def events(
        self, text: str, sampler: TokenChooser, *, max_tokens: int | None = None
    ) -> Steps[Event | PromptProgress, None, None]:
        """Ask, and yield the reply's parts as they come; at the end `messages` has it.

        What is attached belongs to the question, and stays attached until it is kept.

        A reply that the caller stops reading is kept as far as it came; where not even the
        question was read to its end, nothing is kept.

        Raises
        ------
        ContextFullError
            If the conversation with this question does not fit (nothing changes then), or the
            reply reaches the end of the context (what was generated is kept).
        """
        question = Message.of_parts("user", [*self.attached, text])
        prompt = self._prompt.build([*self.messages, question], thinking=self._thinking or None)
        generation = self._generator.start(prompt, sampler, max_tokens=max_tokens)
        try:
            yield from generation
        finally:
            generation.close()
            if generation.token_ids or generation.finish_reason != "interrupted":
                self._keep(question, generation)
        if generation.finish_reason == "context":
            raise ContextFullError(
                f"the context is full: the reply was cut after {len(generation.token_ids)} "
                f"tokens, at {self._generator.engine.context_length} in all",
                hint=CONTEXT_HINT,
            )

    def _keep(self, question: Message, generation: Generation) -> None:
        reply = Reply.of(generation)
        self.attached = []
        self.messages += [question, Message("assistant", reply.text, reply.token_ids)]
        self.last_reply = reply

"""Text goes on without a chat template: what base models do, and others with `--raw`."""

from __future__ import annotations

from collections.abc import Generator as Steps

from gemma4_compile.runtime.chat.chat import Reply
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.prompt_reading import PromptProgress
from gemma4_compile.runtime.engine.sequence import CONTEXT_HINT, ContextFullError
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.prompt.prompt import PromptBuilder
from gemma4_compile.runtime.reply.reply import Event
from gemma4_compile.runtime.sampling.sampling import TokenChooser


class TextCompletion:
    """Goes on with one text after another; none knows of those before.

    Attributes
    ----------
    last_reply : the latest that ended; None before the first
    """

    def __init__(self, engine: Engine, package: Package) -> None:
        """Take an engine over; ArtifactError if the package's tokenizer is missing or damaged."""
        tokenizer = package.load_tokenizer()
        self._prompt = PromptBuilder(tokenizer, None, engine.context_length)
        self._generator = Generator(engine, tokenizer, package.stop_token_ids)
        self._bos_id = package.bos_token_id(tokenizer)
        self.last_reply: Reply | None = None

    def events(
        self, text: str, sampler: TokenChooser, *, max_tokens: int | None = None
    ) -> Steps[Event | PromptProgress, None, None]:
        """Yield what follows `text`, piece by piece; control tokens in it count as such.

        Raises
        ------
        ContextFullError
            If the text does not fit, or what follows reaches the end of the context.
        """
        ids = self._prompt.encode(text)
        if self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        generation = self._generator.start(ids, sampler, max_tokens=max_tokens, plain=True)
        try:
            yield from generation
        finally:
            generation.close()
            self.last_reply = Reply.of(generation)
        if generation.finish_reason == "context":
            raise ContextFullError(
                f"the context is full: the text was cut after {len(generation.token_ids)} "
                f"tokens, at {self._generator.engine.context_length} in all",
                hint=CONTEXT_HINT,
            )

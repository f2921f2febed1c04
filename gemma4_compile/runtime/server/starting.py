"""How a generation begins: what a request wants, ready for the thread of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.prompt_reading import PromptWatcher
from gemma4_compile.runtime.sampling.sampling import TokenChooser, make_sampler
from gemma4_compile.runtime.server.guard import Client
from gemma4_compile.runtime.server.logprobs import ReplyLogprobs
from gemma4_compile.runtime.server.requests import Settings

Constraint = Callable[[TokenChooser], TokenChooser]
"""Makes a chooser that takes only what a grammar allows, for one reply."""


@dataclass(frozen=True)
class Starting:
    """One reply of a request.

    Attributes
    ----------
    logprobs : writes down how probable its tokens are
    plain : all of it is text
    single_call : its first call ends it
    watch : hears of the prompt's tokens
    """

    prompt: Prompt
    settings: Settings
    constrain: Constraint | None
    logprobs: ReplyLogprobs | None
    plain: bool
    single_call: bool
    client: Client | None
    watch: PromptWatcher | None = None

    def begin(self, generator: Generator) -> Generation:
        """Begin it; in the worker's thread."""
        settings = self.settings
        chooser: TokenChooser = make_sampler(settings.sampling, settings.seed, settings.logit_bias)
        if self.constrain is not None:
            chooser = self.constrain(chooser)
        if self.logprobs is not None:
            chooser = self.logprobs.recording(chooser)
        generation = generator.start(
            self.prompt,
            chooser,
            max_tokens=settings.max_tokens,
            stop=settings.stop,
            plain=self.plain,
            client=self.client,
        )
        generation.single_call, generation.watch = self.single_call, self.watch
        return generation

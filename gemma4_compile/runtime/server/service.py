"""What the API's endpoints do with a model: requests to queued generations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tokenizers import Tokenizer

from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.runtime.generation import Generation, Generator, TokenChooser
from gemma4_compile.runtime.grammar import Grammars
from gemma4_compile.runtime.package import Package
from gemma4_compile.runtime.prompt import ChatTemplate, PromptBuilder
from gemma4_compile.runtime.sampling import Sampler, SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.requests import ChatRequest, CompletionRequest, Settings
from gemma4_compile.runtime.server.worker import Ticket, Worker

Constraint = Callable[[TokenChooser], TokenChooser]
"""Makes a chooser that takes only what a grammar allows, for one reply."""


@dataclass(frozen=True)
class Model:
    """What the API knows of a package.

    Attributes
    ----------
    name : the model's name in requests
    context_length : most tokens of a prompt and its reply
    stop_ids : tokens that end a reply
    bos_id : the token that every prompt begins with, or None
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: SamplingOptions
    context_length: int
    vocab_size: int
    stop_ids: frozenset[int]
    bos_id: int | None

    @classmethod
    def of(cls, package: Package, name: str, context_length: int | None) -> Model:
        """Read a package; ArtifactError if its tokenizer or chat template is damaged."""
        tokenizer = package.load_tokenizer()
        special = package.special_tokens()
        bos = special.get("bos_token")
        return cls(
            name=name,
            tokenizer=tokenizer,
            template=ChatTemplate(package.load_chat_template(), special),
            defaults=package.sampling_defaults(),
            context_length=context_length or package.chat_config.context_window_size,
            vocab_size=package.chat_config.vocab_size,
            stop_ids=package.stop_token_ids,
            bos_id=None if bos is None else tokenizer.token_to_id(bos),
        )


class Service:
    """Turns requests into tickets of the worker."""

    def __init__(self, model: Model, worker: Worker, *, thinking: bool = False) -> None:
        """Join them; `thinking` is for requests that do not say."""
        self.model = model
        self.worker = worker
        self._thinking = thinking
        self._prompts = PromptBuilder(model.tokenizer, model.template)
        self._grammars = Grammars(model.tokenizer, model.vocab_size, sorted(model.stop_ids))
        self._compiling = threading.Lock()

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for another model than the one that is served."""
        if name is not None and name != self.model.name:
            raise ApiError(
                404,
                f"the model `{name}` does not exist; this server has `{self.model.name}`",
                param="model",
                code="model_not_found",
            )

    def chat_prompt(self, request: ChatRequest) -> list[int]:
        """Ids of the prompt; ApiError if the template refuses it or it does not fit."""
        thinking = self._thinks(request)
        try:
            ids = self._prompts.build(request.messages, thinking=thinking, tools=request.tools)
        except Gemma4CompileError as error:
            raise ApiError(400, str(error), param="messages") from error
        return self._fitting(ids, "messages")

    def completion_prompt(self, request: CompletionRequest) -> list[int]:
        """Ids of the prompt behind the token that begins every text; errors as `chat_prompt`."""
        if isinstance(request.prompt, str):
            ids = self._prompts.encode(request.prompt)
        else:
            ids = list(request.prompt)
            wrong = next((i for i in ids if not 0 <= i < self.model.vocab_size), None)
            if wrong is not None:
                raise ApiError(
                    400,
                    f"`prompt`: expected ids from 0 to {self.model.vocab_size - 1}, found {wrong}",
                    param="prompt",
                )
        if self.model.bos_id is not None and ids[:1] != [self.model.bos_id]:
            ids.insert(0, self.model.bos_id)
        return self._fitting(ids, "prompt")

    def submit(
        self,
        prompt: list[int],
        settings: Settings,
        *,
        constrain: Constraint | None = None,
        plain: bool = False,
    ) -> Ticket:
        """Queue a generation; ApiError if the queue is full."""

        def start(generator: Generator) -> Generation:
            chooser: TokenChooser = Sampler(settings.sampling, settings.seed)
            return generator.start(
                prompt,
                chooser if constrain is None else constrain(chooser),
                max_tokens=settings.max_tokens,
                stop=settings.stop,
                plain=plain,
            )

        return self.worker.submit(start)

    def constraint(self, request: ChatRequest) -> Constraint | None:
        """What holds a reply to the request's JSON schema; ApiError where that cannot be."""
        schema = request.schema
        if schema is None:
            return None
        if request.tools:
            raise ApiError(
                400,
                "`response_format` and `tools` exclude each other: a call follows no schema",
                param="response_format",
            )
        thinking = self._thinks(request)
        try:
            with self._compiling:
                grammar = self._grammars.compile(schema)
        except Gemma4CompileError as error:
            message = f"{error}; {error.hint}" if error.hint else str(error)
            raise ApiError(400, message, param="response_format") from error
        return partial(grammar.constrain, thinking=thinking)

    def _thinks(self, request: ChatRequest) -> bool:
        return self._thinking if request.thinking is None else request.thinking

    def _fitting(self, ids: list[int], param: str) -> list[int]:
        if len(ids) > self.model.context_length:
            raise ApiError(
                400,
                f"this prompt takes {len(ids)} tokens, and the context holds "
                f"{self.model.context_length}",
                param=param,
                code="context_length_exceeded",
            )
        return ids

"""Service of the API's endpoints: requests to queued generations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tokenizers import Tokenizer

from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.engine.logprobs import AnswerTokens
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence import CONTEXT_HINT, ContextFullError, Overflow
from gemma4_compile.runtime.grammar.grammar import Grammars
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.prompt.prompt import NO_TEMPLATE, PromptBuilder
from gemma4_compile.runtime.reply.reply import MarkIds
from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError, does_not_fit
from gemma4_compile.runtime.server.cards import ModelCard, is_called, unknown_model
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.guard import Client
from gemma4_compile.runtime.server.logprobs import EchoLogprobs, ReplyLogprobs
from gemma4_compile.runtime.server.media import MediaReader
from gemma4_compile.runtime.server.messages import name_of, of_any_arguments
from gemma4_compile.runtime.server.prompt_lanes import PromptLanes
from gemma4_compile.runtime.server.requests import (
    ChatRequest,
    CompletionRequest,
    Request,
)
from gemma4_compile.runtime.server.starting import Constraint, Starting
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.server.worker import Place, Worker
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.template.watch import SlowRenderingError, Watch


@dataclass(frozen=True)
class Model:
    """A package as the API knows it.

    Attributes
    ----------
    name : the model's name in requests
    context_length : most tokens of a prompt and its reply
    stop_ids : tokens that end a reply
    template : None for a base model, which serves completions alone
    bos_id : the token that every prompt begins with, or None
    media : what it takes besides text
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: SamplingOptions
    context_length: int
    vocab_size: int
    stop_ids: frozenset[int]
    bos_id: int | None
    media: MediaSettings = field(default_factory=MediaSettings)

    @property
    def card(self) -> ModelCard:
        """Return what lists tell of it."""
        sees = self.media.image is not None
        return ModelCard.of(self.name, self.context_length, self.template, sees=sees)

    @property
    def takes_media(self) -> bool:
        """Return whether it takes anything besides text."""
        return self.media != MediaSettings()

    @classmethod
    def of(cls, package: Package, name: str, context_length: int | None) -> Model:
        """Read a package; ArtifactError if its tokenizer or chat template is damaged."""
        tokenizer = package.load_tokenizer()
        template = package.chat_template() if package.has_chat_template else None
        return cls(
            name=name,
            tokenizer=tokenizer,
            template=template,
            defaults=package.sampling_defaults(),
            context_length=context_length or package.chat_config.context_window_size,
            vocab_size=package.chat_config.vocab_size,
            stop_ids=package.stop_token_ids,
            bos_id=package.bos_token_id(tokenizer),
        )


def tenant_of(client: Client | None, request: Request) -> str:
    """Whose request it is, by key and salt; nobody's where it brings neither."""
    key, salt = "" if client is None else client[1], request.cache_salt
    return f"{len(key)} {key}{salt}" if key or salt else ""


def _with_hint(error: Gemma4CompileError) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)


@dataclass(frozen=True)
class Reply:
    """One of a request's replies, queued.

    Attributes
    ----------
    logprobs : log probabilities of its tokens, if the request wants them
    """

    ticket: Ticket
    logprobs: ReplyLogprobs | None


class Service:
    """Turns requests into tickets of the worker."""

    def __init__(
        self,
        model: Model,
        worker: Worker,
        *,
        thinking: bool = False,
        literal_specials: bool = False,
        strict_model: bool = False,
        strict_request: bool = False,
        media_hosts: Sequence[str] = (),
    ) -> None:
        """Join them.

        Parameters
        ----------
        thinking : for requests that do not set it
        literal_specials : take control tokens in prompts as text
        strict_model : refuse requests for another model's name
        strict_request : refuse requests with fields that are not known
        media_hosts : from which pictures are fetched
        """
        self.model = model
        self.worker = worker
        self._thinking = thinking
        self._strict_model = strict_model
        self.strict_request = strict_request
        self._prompts = PromptBuilder(
            model.tokenizer,
            model.template,
            model.context_length,
            literal_specials=literal_specials,
            media=model.media,
        )
        self._media = MediaReader(model.media, media_hosts)
        self._grammars = Grammars(model.tokenizer, model.vocab_size, sorted(model.stop_ids))
        self._lanes = PromptLanes()

    @property
    def max_prompt_bytes(self) -> int:
        """Bytes of text that no prompt which fits can exceed."""
        assert self._prompts.max_bytes is not None, "the context's length is known"
        return self._prompts.max_bytes

    async def resolve(self, request: ChatRequest) -> ChatRequest:
        """The request with its media decoded; ApiError 400 for one that cannot be."""
        if not request.media:
            return request
        messages = await self._media.resolve(request.messages, request.media)
        return replace(request, messages=messages, media=())

    async def build_chat(self, request: ChatRequest) -> Prompt:
        """`chat_prompt` when its turn comes; errors as there and of `PromptLanes.build`."""
        return await self._lanes.build(self.chat_prompt, request)

    async def build_completion(self, request: CompletionRequest) -> Prompt:
        """`completion_prompt` when its turn comes; errors as there."""
        return await self._lanes.build(self.completion_prompt, request)

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for another model than the one that is served."""
        if name is not None and not self._is_own(name):
            raise ApiError(404, self._unknown(name), param="model", code="model_not_found")

    def check_strict(self, name: str | None) -> None:
        """ApiError 404 for another model, where the server is strict about that."""
        if self._strict_model:
            self.check_model(name)

    def note_about(self, request: Request, ignored: Ignored) -> str | None:
        """Note in a reply to a request for another model, or with fields that mean nothing.

        Raises
        ------
        ApiError
            404 for another model on a strict server, 400 for an option that the template reads.
        """
        if isinstance(request, ChatRequest):
            self._check_template_options(request)
        name, notes = request.model, [ignored.note()]
        self.check_strict(name)
        if name is not None and not self._is_own(name):
            notes = [f"{self._unknown(name)}, which answers", *notes]
        return "; ".join(note for note in notes if note is not None) or None

    def _check_template_options(self, request: ChatRequest) -> None:
        """ApiError for an option that changes the prompt; transformers ignores the others, too."""
        template = self.model.template
        read = frozenset() if template is None else template.variables
        for name in request.template_options:
            if name in read:
                raise ApiError(
                    400,
                    f"`chat_template_kwargs.{name}`: the chat template reads it, and requests "
                    "cannot set it here",
                    param=f"chat_template_kwargs.{name}",
                    code="unsupported_value",
                )

    def _is_own(self, name: str) -> bool:
        """Return whether it is the name of the model that is served, as some clients write it."""
        return is_called(self.model.name, name)

    def _unknown(self, name: str) -> str:
        return unknown_model(name, self.model.name)

    def chat_prompt(self, request: ChatRequest, watch: Watch) -> Prompt:
        """The whole prompt.

        Raises
        ------
        ApiError
            If the template refuses it, or it does not fit.
        SlowRenderingError
            If the watch ends it.
        """
        if self.model.template is None:
            raise ApiError(
                400,
                f"{NO_TEMPLATE}; use /v1/completions, or a package of an instruction-tuned "
                "checkpoint",
                param="messages",
                code="no_chat_template",
            )
        thinking = self._thinks(request)
        try:
            prompt = self._prompts.build(
                request.messages,
                thinking=thinking,
                tools=request.declared,
                begun=request.begun,
                watch=watch,
                tenant=request.tenant,
            )
        except SlowRenderingError:
            raise
        except ContextFullError as error:
            raise does_not_fit(error, "messages") from error
        except Gemma4CompileError as error:
            raise ApiError(400, _with_hint(error), param="messages") from error
        return self._fitting(prompt, "messages")

    def completion_prompt(self, request: CompletionRequest, _: Watch) -> Prompt:
        """The text after the token that begins every text; errors as `chat_prompt`."""
        if isinstance(request.prompt, str):
            try:
                ids = self._prompts.encode_prompt(request.prompt, tenant=request.tenant)
            except ContextFullError as error:
                raise does_not_fit(error, "prompt") from error
        else:
            ids = self._fitting(Prompt.of(request.prompt), "prompt").ids
            wrong = next((i for i in ids if not 0 <= i < self.model.vocab_size), None)
            if wrong is not None:
                raise ApiError(
                    400,
                    f"`prompt`: expected ids from 0 to {self.model.vocab_size - 1}, found {wrong}",
                    param="prompt",
                )
        if self.model.bos_id is not None and ids[:1] != [self.model.bos_id]:
            ids = [self.model.bos_id, *ids]
        return self._fitting(Prompt(ids), "prompt")

    def submit(
        self,
        place: Place,
        prompt: Prompt,
        request: Request,
        *,
        constrain: Constraint | None = None,
        client: Client | None = None,
    ) -> list[Reply]:
        """Queue a request's generations in its place; ApiError if the server is stopping.

        Parameters
        ----------
        request : what others than its tenant held is not gone on from
        client : only the one whose prompt was before it learns how much of its own was there
        """
        prompt = replace(prompt, tenant=request.tenant)
        plain = isinstance(request, CompletionRequest)
        single_call = isinstance(request, ChatRequest) and not request.several_calls
        marks = MarkIds.of(self.model.tokenizer)
        starts, recorders = [], []
        echo = self._echo_logprobs(request)
        for index in range(request.replies):
            settings = request.settings.of_reply(index)
            recorder = None
            if settings.logprobs is not None:
                in_reasoning = marks.reasoning_is_open(prompt.ids)
                answer = None if plain else AnswerTokens(marks, in_reasoning=in_reasoning)
                recorder = ReplyLogprobs(self.model.tokenizer, settings.logprobs, answer, echo)
            recorders.append(recorder)
            starting = Starting(
                prompt,
                settings,
                constrain,
                recorder,
                plain=plain,
                single_call=single_call,
                client=client,
                watch=echo.watch if echo is not None and index == 0 else None,
            )
            starts.append(starting.begin)
        tickets = place.submit(*starts, prompt=prompt)
        return [Reply(*pair) for pair in zip(tickets, recorders, strict=True)]

    def echoed(self, request: CompletionRequest) -> str:
        """The text that a request's answer begins with; empty where it is not asked for."""
        if not request.echo:
            return ""
        if isinstance(request.prompt, str):
            return request.prompt
        text: str = self.model.tokenizer.decode(request.prompt, skip_special_tokens=False)
        return text

    def _echo_logprobs(self, request: Request) -> EchoLogprobs | None:
        """Where log probabilities of a prompt that is repeated are gathered, if they are wanted."""
        top = request.settings.logprobs
        if not isinstance(request, CompletionRequest) or not request.echo or top is None:
            return None
        prompt = request.prompt
        tokens = self._prompts.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        return EchoLogprobs(self.echoed(request), tokens, top)

    def constraint(self, request: ChatRequest, prompt: Prompt) -> Constraint | None:
        """Constraint of a reply by the request's schema or calls; ApiError if it cannot be."""
        schema, tools = request.schema, request.must_call
        strict = [tool for tool in request.tools if name_of(tool) in request.strict]
        only_calls = schema is None and not tools
        if only_calls and not strict:
            return None
        room = self.model.context_length - len(prompt)
        try:
            if tools:
                grammar = self._grammars.compile_calls(
                    tools,
                    several=request.several_calls,
                    room=min(room, request.settings.max_tokens or room),
                )
            elif request.tools:
                held = [t if t in strict else of_any_arguments(t) for t in request.tools]
                several = only_calls or request.several_calls
                grammar = self._grammars.compile_calls(held, several=several, answer=schema)
            else:
                assert schema is not None, "there is something to follow"
                grammar = self._grammars.compile(schema)
        except Gemma4CompileError as error:
            param = "tool_choice" if tools else "tools" if only_calls else "response_format"
            raise ApiError(400, _with_hint(error), param=param) from error
        thinking = bool(self._thinks(request))
        return partial(grammar.constrain, thinking=thinking, only_calls=only_calls)

    def check_biases(self, request: Request) -> None:
        """ApiError for a bias of a token that the model does not have."""
        wrong = [i for i in request.settings.logit_bias if i >= self.model.vocab_size]
        if wrong:
            raise ApiError(
                400,
                f"`logit_bias`: expected ids from 0 to {self.model.vocab_size - 1}, "
                f"found {wrong[0]}",
                param="logit_bias",
            )

    def _thinks(self, request: ChatRequest) -> bool | None:
        """What the request or the server asks for; None leaves it to the template."""
        return (self._thinking or None) if request.thinking is None else request.thinking

    def _fitting(self, prompt: Prompt, param: str) -> Prompt:
        if not prompt.ids:
            raise ApiError(400, f"`{param}`: this tokenizer makes no tokens of it", param=param)
        tokens, most = len(prompt), self.model.context_length
        if tokens > most:
            why = f"this prompt takes {tokens} tokens, and the context holds {most}"
            overflow = Overflow(tokens, most)
            raise does_not_fit(ContextFullError(why, hint=CONTEXT_HINT, overflow=overflow), param)
        return prompt

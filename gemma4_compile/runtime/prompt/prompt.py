"""Turns a conversation into token ids with the package's own chat template.

Replies of the model enter with the ids that it generated, not with the ids that their text would
get: the state then already holds them, and text that is not valid UTF-8 survives. The template is
rendered with a mark in the place of each such reply, the text between the marks is encoded, and the
ids go in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tokenizers import Encoding, Tokenizer

from gemma4_compile.errors import UsageError, is_panic
from gemma4_compile.media.inputs import Medium, kind_of
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.engine.media_prompt import Prompt, Rows, Spread
from gemma4_compile.runtime.engine.sequence import CONTEXT_HINT, ContextFullError, Overflow
from gemma4_compile.runtime.prompt.known_pieces import PIECE_CHARACTERS, KnownPieces
from gemma4_compile.runtime.prompt.literal_specials import Hider
from gemma4_compile.runtime.prompt.prompt_room import FEW, Fewest, Holds, TokenCount
from gemma4_compile.runtime.reply.reply import MarkIds
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.template.watch import Watch, watched
from gemma4_compile.types import JsonObject

NO_TEMPLATE = "this model has no chat template: it goes on with texts, as base models do"
_MARK = "\ue000{}\ue001"  # private-use characters: no template or tokenizer gives them a meaning
_MARKS = re.compile("\ue000([0-9]+)\ue001")
_PIECE = 1 << 16  # characters that are encoded at a time where a text may be too long
_TOKENS_OF_A_CUT = 64  # more than a cut through a word or a control token can add


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes
    ----------
    role : `system`, `developer`, `user`, `assistant` or `tool`
    content : its text
    parts : texts and media in their order, where there are media; `content` is the texts
    token_ids : of a reply: the ids that the model generated, stop token left out
    reasoning : of a reply: what the model wrote before it
    tool_calls : of a reply: the tools that it calls
    tool_call_id, name : of a tool's result: the call that it answers, or else the tool's name
    """

    role: str
    content: str
    token_ids: tuple[int, ...] | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    parts: tuple[str | Medium, ...] = ()

    @classmethod
    def of_parts(cls, role: str, parts: Sequence[str | Medium]) -> Message:
        """A message of texts and media; one of texts alone is as every other."""
        content = "".join(part for part in parts if isinstance(part, str))
        has_media = any(not isinstance(part, str) for part in parts)
        return cls(role, content, parts=tuple(parts) if has_media else ())

    @property
    def media(self) -> list[Medium]:
        """Its pictures, sounds and videos, in their order."""
        return [part for part in self.parts if not isinstance(part, str)]

    def for_template(self) -> JsonObject:
        """The message as chat templates take it; fields without content are left out."""
        fields: JsonObject = {"role": self.role, "content": self.content}
        if self.parts:
            fields["content"] = [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": kind_of(part)}
                for part in self.parts
            ]
        if self.reasoning:
            fields["reasoning_content"] = self.reasoning
        if self.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id:
            fields["tool_call_id"] = self.tool_call_id
        if self.name:
            fields["name"] = self.name
        return fields


def without_reasoning(ids: Sequence[int], opening: int | None, closing: int | None) -> list[int]:
    """Drop every span from `opening` to `closing`; the template drops them from earlier replies."""
    kept, inside = [], False
    for token_id in ids:
        if token_id == opening:
            inside = True
        elif token_id == closing:
            inside = False
        elif not inside:
            kept.append(token_id)
    return kept


def _open_for_the_reply(messages: Sequence[Message]) -> Sequence[Message]:
    """Leave out the text next to the calls whose results end the conversation.

    The models' template writes such a text after the results and closes the turn there. The reply,
    which goes on in that turn, would be outside of any.
    """
    last = len(messages) - 1
    while last >= 0 and messages[last].role == "tool":
        last -= 1
    if last < 0 or last == len(messages) - 1 or not messages[last].tool_calls:
        return messages
    return [*messages[:last], replace(messages[last], content=""), *messages[last + 1 :]]


def longest_token_bytes(tokenizer: Tokenizer) -> int:
    """Most bytes of text that one token can hold."""
    return max((len(token.encode()) for token in tokenizer.get_vocab()), default=1)


class PromptBuilder:
    """Conversation in, token ids out.

    A text that cannot fit into the context is refused by its bytes, or by the tokens of its
    beginning: to encode all of it could take minutes and gigabytes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        context_length: int | None = None,
        *,
        literal_specials: bool = False,
        media: MediaSettings | None = None,
    ) -> None:
        """Prepare.

        Parameters
        ----------
        template : None for a model that has none, which takes texts and no messages
        context_length : most tokens of a prompt; None for any number
        literal_specials : take control tokens in messages as text; UsageError if the tokenizer
            has no text for one
        media : what the package takes besides text
        """
        self._tokenizer = tokenizer
        self._template = template
        self._context_length = context_length
        marks = MarkIds.of(tokenizer)
        self._channel = (marks.open_channel, marks.close_channel)
        self._spread = Spread(tokenizer, media or MediaSettings())
        self._hider = Hider(tokenizer) if literal_specials else None
        if self._hider is None and self._spread.placeholders:
            self._hider = Hider(tokenizer, self._spread.placeholders)
        self._literal = literal_specials
        self._pieces = KnownPieces(tokenizer)
        self._fewest: Fewest | None = None  # measured for the first conversation that is long
        self.max_bytes: int | None = None
        if context_length is not None:
            self.max_bytes = context_length * longest_token_bytes(tokenizer)

    def encode(self, text: str, *, tenant: str = "") -> list[int]:
        """Ids of a text in which control tokens are spelled out; nothing is added.

        Parameters
        ----------
        tenant : who asks; see `KnownPieces`

        Raises
        ------
        ContextFullError
            If they do not fit into the context.
        """
        self._check_bytes(len(text))
        if self._context_length is not None and len(text) > 4 * self._context_length + _PIECE:
            self._check_pieces(text, self._context_length)
        if len(text) > PIECE_CHARACTERS:
            ids = self._pieces.ids(text, self._encode_all, tenant)
        else:
            ids = self._encode(text).ids
        if self._context_length is not None and len(ids) > self._context_length:
            raise self._too_long(f"takes {len(ids)} tokens", len(ids))
        return ids

    def encode_prompt(self, text: str, *, tenant: str = "") -> list[int]:
        """Ids of a text that a user wrote; ContextFullError as of `encode`."""
        self._check_bytes(len(text))
        return self._encode_hidden(
            self._hider.hide(text) if self._literal and self._hider else text, tenant
        )

    def build(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        begun: str = "",
        watch: Watch | None = None,
        tenant: str = "",
    ) -> Prompt:
        """The whole prompt, up to where the model's reply begins, and its media.

        Parameters
        ----------
        begun : what the reply begins with: the model goes on from there
        watch : may end the rendering
        tenant : who asks; see `KnownPieces`

        Raises
        ------
        UsageError
            If the template refuses the messages or the tools, has no place for a medium, or there
            is none; or if the package does not take a medium.
        ContextFullError
            If they do not fit into the context.
        SlowRenderingError
            If the watch ends it.
        """
        if self._template is None:
            raise UsageError(NO_TEMPLATE, hint="give it a text to go on with")
        if tools and "tools" not in self._template.variables:
            raise UsageError(
                "the package's chat template knows no tools: the model would not hear of them",
                hint="ask without `tools`, or take a model whose template has them, as Gemma 4's",
            )
        characters = sum(_characters(message) for message in messages) + len(begun)
        self._check_bytes(characters + _length(tools))
        self._check_counts(messages, self._template)
        messages = _open_for_the_reply(messages)
        if self._hider is not None:
            messages = [_hidden(message, self._hider) for message in messages]
            tools, begun = self._hider.hide(tools), self._hider.hide(begun)
        # Calls are rendered by the template: their ids come before the text that a mark replaces.
        replayed = [
            index
            for index, message in enumerate(messages)
            if message.token_ids is not None and not message.tool_calls
        ]
        marked = list(messages)
        for index in replayed:
            marked[index] = replace(messages[index], content=_MARK.format(index))
        media = [medium for message in messages for medium in message.media]
        watch = watch or Watch()
        with watched(watch, self._new_text):
            text = self._template.render(marked, thinking=thinking, tools=tools)
        pieces = _MARKS.split(text + begun)
        replies = [self._reply_ids(messages[index]) for index in replayed]
        if [int(index) for index in pieces[1::2]] != replayed:
            # The template rewrites or leaves out a reply: then only its text shows what remains.
            shown = [self._without_placeholders(message) for message in messages]
            with watched(watch, self._new_text):
                pieces = [self._template.render(shown, thinking=thinking, tools=tools) + begun]
            replies = []
        parts: list[list[int] | Rows] = []
        for index, segments in enumerate(self._spread.split(pieces[::2], media)):
            parts += [
                s if isinstance(s, Rows) else self._encode_hidden(s, tenant) for s in segments
            ]
            parts += replies[index : index + 1]
        return Prompt.joined(parts)

    def _reply_ids(self, message: Message) -> list[int]:
        return without_reasoning(message.token_ids or (), *self._channel)

    def _without_placeholders(self, message: Message) -> Message:
        """A reply whose text takes no medium's place."""
        if not self._spread.placeholders or self._hider is None:
            return message
        return replace(message, content=self._hider.hide(message.content))

    def _encode_hidden(self, text: str, tenant: str = "") -> list[int]:
        """Ids of a text in which control tokens of messages may be hidden."""
        if self._hider is None:
            return self.encode(text, tenant=tenant)
        ids: list[int] = []
        for piece in self._hider.split(text):
            ids += self.encode(piece, tenant=tenant) if isinstance(piece, str) else piece
        return ids

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._encodings(texts)]

    def _encode(self, text: str) -> Encoding:
        return self._encodings([text])[0]

    def _encodings(self, texts: Sequence[str]) -> Sequence[Encoding]:
        try:
            if sum(map(len, texts)) < _PIECE:
                return [self._tokenizer.encode(one, add_special_tokens=False) for one in texts]
            # Of the methods of `tokenizers` this one lets other threads run meanwhile.
            return self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:  # a panic of native code is no Exception
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise UsageError(
                f"the tokenizer fails at this text: {error}",
                hint="write it otherwise, or compile again with the tokenizer of the training",
            ) from error

    def _check_bytes(self, count: int) -> None:
        if self.max_bytes is not None and count > self.max_bytes:
            raise self._too_long(f"has {count} characters or more")

    def _check_pieces(self, text: str, context_length: int) -> None:
        """Encode piece by piece until there are surely too many tokens.

        A text has about as many tokens as its pieces; a cut makes a few more.
        """
        count = 0
        for piece in _cut(text):
            count += max(len(self._encode(piece)) - _TOKENS_OF_A_CUT, 0)
            if count > context_length:
                raise self._too_long(f"takes more than {count} tokens", count)

    def _check_counts(self, messages: Sequence[Message], template: ChatTemplate) -> None:
        """Refuse what has more messages, calls and results than the context has tokens for them."""
        holds = Holds.of(messages)
        if self._context_length is None or holds.questions + holds.calls + holds.results <= FEW:
            return
        if self._fewest is None:
            self._fewest = Fewest.of(template, lambda text: len(self._encode(text)))
        tokens = self._fewest.tokens(holds)
        if tokens > self._context_length:
            raise self._too_long(f"takes {tokens} tokens or more", tokens)

    def _new_text(self) -> Callable[[str], None]:
        """What counts the tokens of a text that is rendered, and refuses it when they are many."""
        room = self._context_length
        if room is None:
            return lambda piece: None
        count = TokenCount(room, self._fewest_tokens)

        def take(piece: str) -> None:
            if count.add(piece) > room:
                raise self._too_long(f"takes more than {count.tokens} tokens", count.tokens)

        return take

    def _fewest_tokens(self, text: str) -> int:
        """Tokens of a part of a rendered text; a reply in the place of a mark may have none."""
        return len(self._encode_hidden(_MARKS.sub("", text)))

    def _too_long(self, what: str, tokens: int | None = None) -> ContextFullError:
        assert self._context_length is not None, "else nothing is too long"
        return ContextFullError(
            f"the context is full: this conversation {what}, and the context holds "
            f"{self._context_length} tokens",
            hint=CONTEXT_HINT,
            overflow=None if tokens is None else Overflow(tokens, self._context_length),
        )


def _hidden(message: Message, hider: Hider) -> Message:
    """The message without control tokens but for those that the model itself generated."""
    if message.token_ids is not None:
        return message
    return replace(
        message,
        content=hider.hide(message.content),
        parts=tuple(hider.hide(p) if isinstance(p, str) else p for p in message.parts),
        reasoning=hider.hide(message.reasoning),
        name=hider.hide(message.name),
        tool_calls=tuple(
            ToolCall(hider.hide(call.name), hider.hide(call.arguments), call.call_id)
            for call in message.tool_calls
        ),
    )


def _cut(text: str) -> Iterator[str]:
    for begin in range(0, len(text), _PIECE):
        yield text[begin : begin + _PIECE]


def _characters(message: Message) -> int:
    """Characters of a message that its tokens hold; templates leave out earlier reasoning."""
    calls = sum(len(call.name) + _length(call.arguments) for call in message.tool_calls)
    known = 0 if message.token_ids is None else len(message.content)
    return len(message.content) - known + calls


def _length(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False)) if value else 0

"""Turns a conversation into token ids with the package's own chat template.

Replies of the model enter with the ids that it generated, not with the ids that their text would
get: the state then already holds them, and text that is not valid UTF-8 survives. The template is
rendered with a mark in the place of each such reply, the text between the marks is encoded, and the
ids go in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.reply import MarkIds
from gemma4_compile.runtime.tool_calls import ToolCall

_MARK = "\ue000{}\ue001"  # private-use characters: no template or tokenizer gives them a meaning
_MARKS = re.compile("\ue000([0-9]+)\ue001")


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes
    ----------
    role : `system`, `developer`, `user`, `assistant` or `tool`
    content : its text
    token_ids : of a reply: the ids that the model generated, stop token left out
    thought : of a reply: what the model thought before it
    tool_calls : of a reply: the tools that it calls
    tool_call_id, name : of a tool's result: the call that it answers, or else the tool's name
    """

    role: str
    content: str
    token_ids: tuple[int, ...] | None = None
    thought: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it; fields that say nothing are left out."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.thought:
            fields["reasoning_content"] = self.thought
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


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """A checkpoint's `chat_template.jinja`, rendered in Jinja's sandbox as transformers does."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """Compile the template.

        Parameters
        ----------
        source : the template
        special_tokens : `bos_token` and its like, as the template may name them

        Raises
        ------
        ArtifactError
            If it is no valid template.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], undefined=Undefined
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special_tokens = special_tokens
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ArtifactError(
                f"the chat template is damaged: {error}", hint="compile the package again"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Render the whole conversation and the opening of the model's next turn.

        Parameters
        ----------
        tools : declarations in the form of OpenAI's API, or none

        Raises
        ------
        UsageError
            If the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=[message.for_template() for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=True,
                enable_thinking=thinking,
                **self._special_tokens,
            )
        except (TemplateError, TypeError) as error:  # TypeError: a filter got what it cannot take
            raise UsageError(
                f"the chat template refuses this conversation: {error}",
                hint="messages of a user and of the model take turns, behind one of the system",
            ) from error


def without_thoughts(ids: Sequence[int], opening: int | None, closing: int | None) -> list[int]:
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
    """Leave out the text beside the calls whose results end the conversation.

    The models' template writes such a text behind the results and closes the turn there. The reply,
    which goes on in that turn, would stand outside of any.
    """
    last = len(messages) - 1
    while last >= 0 and messages[last].role == "tool":
        last -= 1
    if last < 0 or last == len(messages) - 1 or not messages[last].tool_calls:
        return messages
    return [*messages[:last], replace(messages[last], content=""), *messages[last + 1 :]]


class PromptBuilder:
    """Conversation in, token ids out."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        marks = MarkIds.of(tokenizer)
        self._channel = (marks.open_channel, marks.close_channel)

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are spelled out; nothing is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def build(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Ids of the whole prompt, up to where the model's reply begins.

        Raises
        ------
        UsageError
            If the template refuses the messages or the tools.
        """
        messages = _open_for_the_reply(messages)
        # Calls are rendered by the template: their ids stand before the text that a mark replaces.
        replayed = [
            index
            for index, message in enumerate(messages)
            if message.token_ids is not None and not message.tool_calls
        ]
        marked = list(messages)
        for index in replayed:
            marked[index] = replace(messages[index], content=_MARK.format(index))
        text = self._template.render(marked, thinking=thinking, tools=tools)
        pieces = _MARKS.split(text)
        if [int(index) for index in pieces[1::2]] != replayed:
            # The template rewrites or leaves out a reply: then only its text says what remains.
            return self.encode(self._template.render(messages, thinking=thinking, tools=tools))
        ids = self.encode(pieces[0])
        for index, following in zip(replayed, pieces[2::2], strict=True):
            ids += without_thoughts(messages[index].token_ids or (), *self._channel)
            ids += self.encode(following)
        return ids

"""A checkpoint's chat template, rendered in Jinja's sandbox as transformers does.

A template is a program that a stranger wrote. The sandbox keeps it from Python's objects, not from
time and memory: what comes from outside is tried in a process of its own first
(`confined.conversation`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn, Protocol

from jinja2 import TemplateError, Undefined, meta
from jinja2.ext import loopcontrols

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.template_watch import WatchedEnvironment
from gemma4_compile.types import JsonObject


class TemplateMessage(Protocol):
    """The fields of a message that templates read."""

    def for_template(self) -> JsonObject:
        """Return the message as chat templates take it."""


def special_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """Texts of the tokens that templates name, such as `bos_token`.

    Parameters
    ----------
    tokenizer_config : the parsed `tokenizer_config.json`
    """
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = tokenizer_config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def template_of(tokenizer_config: Mapping[str, object]) -> str | None:
    """The chat template in a parsed `tokenizer_config.json`; of several, the `default` one."""
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """A compiled `chat_template.jinja`.

    Attributes
    ----------
    variables : names that it reads and does not set itself
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
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
        environment = WatchedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], undefined=Undefined
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special_tokens = special_tokens
        try:
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
            self.variables = frozenset(names) - environment.globals.keys()
        except Exception as error:  # a RecursionError, a SyntaxError of what Jinja makes of it, ...
            raise ArtifactError(
                f"the chat template is damaged: {_reason(error)}", hint="compile the package again"
            ) from error

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        thinking: bool = False,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Render the whole conversation and the opening of the model's next turn.

        Parameters
        ----------
        tools : declarations in the form of OpenAI's API, or none

        Raises
        ------
        UsageError
            If the template refuses the messages, fails at them, or makes no text of them.
        """
        try:
            text = self._template.render(
                messages=[message.for_template() for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=True,
                enable_thinking=thinking,
                **self._special_tokens,
            )
            text.encode()
        except Exception as error:  # whatever a template's own code can raise
            raise UsageError(
                f"the chat template refuses this conversation: {_reason(error)}",
                hint="messages of a user and of the model take turns, after one of the system",
            ) from error
        if not text:
            raise UsageError(
                "the chat template makes no text of this conversation",
                hint="take the chat template of the original checkpoint",
            )
        return text


def _reason(error: Exception) -> str:
    """Jinja's own messages are for people; of others the class tells more than the message."""
    return str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"

"""A checkpoint's chat template, rendered in Jinja's sandbox as transformers does.

A template is a program that a stranger wrote. The sandbox keeps it from Python's objects, not from
time and memory: what comes from outside is tried in a process of its own first
(`confined.conversation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from jinja2 import Template, TemplateError, meta, nodes

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.template.content import in_form, roles_of_parts
from gemma4_compile.template.environment import new_environment
from gemma4_compile.template.watch import unwatched
from gemma4_compile.types import JsonObject

DEFAULT, TOOL_USE = "default", "tool_use"  # names of templates, where there are several
SPECIAL_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
# Classes of tokenizers in transformers that name tokens themselves.
_GEMMA = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_OF_CLASSES = {"GemmaTokenizer": _GEMMA, "GemmaTokenizerFast": _GEMMA}
# Of which a name may be a list of tokens without names, which templates do not see.
# The later holds.
_NAMED_TOKENS = ("model_specific_special_tokens", "extra_special_tokens")


class TemplateMessage(Protocol):
    """The fields of a message that templates read."""

    def for_template(self) -> JsonObject:
        """Return the message as chat templates take it."""


def special_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """Texts of the tokens that templates name, such as `bos_token`, as transformers gives them.

    Parameters
    ----------
    tokenizer_config : the parsed `tokenizer_config.json`
    """
    of_class = _OF_CLASSES.get(str(tokenizer_config.get("tokenizer_class")), {})
    own = {name: text for name, text in of_class.items() if name not in tokenizer_config}
    return {**own, **named_tokens(tokenizer_config)}


def named_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """Return the special tokens that a parsed `tokenizer_config.json` itself names."""
    named = {name: tokenizer_config[name] for name in SPECIAL_TOKENS if name in tokenizer_config}
    for name, value in tokenizer_config.items():
        if name.endswith("_token") and not isinstance(value, bool):
            named.setdefault(name, value)
    for group in _NAMED_TOKENS:
        more = tokenizer_config.get(group)
        named.update(more if isinstance(more, dict) else {})
    texts = {name: _text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _text(token: object) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def templates_of(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """The chat templates in a parsed `tokenizer_config.json` by name; one alone is the default."""
    found = tokenizer_config.get("chat_template")
    if isinstance(found, str):
        return {DEFAULT: found}
    if isinstance(found, list):
        entries = [each for each in found if isinstance(each, dict)]
        found = {each.get("name"): each.get("template") for each in entries}
    if not isinstance(found, dict):
        return {}
    return {name: text for name, text in found.items() if isinstance(text, str)}


class ChatTemplate:
    """A compiled `chat_template.jinja`, and the one for conversations with tools, if any.

    Attributes
    ----------
    variables : names that they read and do not set themselves
    largest_integer : that they name, by magnitude; infinite where they may compute larger ones
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tool_use: str | None = None
    ) -> None:
        """Compile the template.

        Parameters
        ----------
        source : the template
        special_tokens : `bos_token` and its like, as the template may name them
        tool_use : the template where there are tools; None: it is the same

        Raises
        ------
        ArtifactError
            If it is no valid template.
        """
        self._special_tokens = special_tokens
        self._template, self.variables, self.largest_integer = _compiled(source)
        self._tool_use = self._template
        if tool_use is not None:
            self._tool_use, more, largest = _compiled(tool_use)
            self.variables |= more
            self.largest_integer = max(self.largest_integer, largest)
        self._parts: dict[Template, frozenset[str]] = {}  # roles whose messages are parts

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Render the whole conversation and the opening of the model's next turn.

        Parameters
        ----------
        thinking : None leaves it to the template
        tools : declarations in the form of OpenAI's API, or none

        Raises
        ------
        UsageError
            If the template refuses the messages, fails at them, or makes no text of them; or what
            they hold is nested deeper than Jinja goes.
        """
        template = self._tool_use if tools else self._template
        try:
            fields = [_for_template(message) for message in messages]
            text = self._render(
                template, in_form(fields, self._roles_of_parts(template)), thinking, tools
            )
        except RecursionError as error:
            raise UsageError(
                f"the chat template refuses this conversation: nested too deep, {_reason(error)}",
                hint="give calls, results and declarations of tools fewer levels of lists and "
                "objects within each other",
            ) from error
        except Exception as error:  # whatever else a template's own code can raise
            raise UsageError(
                f"the chat template refuses this conversation: {_reason(error)}",
                hint="messages of a user and of the model take turns, after one of the system",
            ) from error
        if not text:
            raise UsageError(
                "the chat template makes no text of this conversation",
                hint="correct the chat template, or ask with a text alone",
            )
        return text

    def _roles_of_parts(self, template: Template) -> frozenset[str]:
        if template not in self._parts:
            with unwatched():
                self._parts[template] = roles_of_parts(partial(self._render, template))
        return self._parts[template]

    def _render(
        self,
        template: Template,
        messages: Sequence[JsonObject],
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        chosen = {} if thinking is None else {"enable_thinking": thinking}
        text = template.render(
            {
                **self._special_tokens,
                **chosen,
                "messages": messages,
                "tools": list(tools) or None,
                "documents": None,
                "add_generation_prompt": True,
            }
        )
        text.encode()  # half of a surrogate pair is no text
        return text


def _for_template(message: TemplateMessage) -> JsonObject:
    """The fields of a message, its reasoning under both names that templates read."""
    fields = message.for_template()
    reasoning = fields.get("reasoning_content")
    return fields if reasoning is None else {"thinking": reasoning, **fields}


def _compiled(source: str) -> tuple[Template, frozenset[str], float]:
    """The template, the names that it reads and does not set, and the largest integer in it."""
    environment = new_environment()
    try:
        template = environment.from_string(source)
        parsed = environment.parse(source)
        names = meta.find_undeclared_variables(parsed)
    except Exception as error:  # a RecursionError, a SyntaxError of what Jinja makes of it, ...
        raise ArtifactError(
            f"the chat template is damaged: {_reason(error)}", hint="compile the package again"
        ) from error
    return template, frozenset(names) - environment.globals.keys(), _largest_integer(parsed)


def _largest_integer(parsed: nodes.Template) -> float:
    """The largest magnitude of an integer that a template names, or may compute of such."""
    if next(parsed.find_all((nodes.Mul, nodes.Pow)), None) is not None:
        return math.inf
    values = (node.value for node in parsed.find_all(nodes.Const))
    return max((abs(value) for value in values if isinstance(value, int)), default=0)


def _reason(error: Exception) -> str:
    """Jinja's own messages are for people; of others the class tells more than the message."""
    return str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"

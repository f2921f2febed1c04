"""What a package of an encoder says of its embeddings: their size, and prompts by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile import abi
from gemma4_compile.errors import printable
from gemma4_compile.package.artifacts import ChatConfig
from gemma4_compile.package.fields import Fields
from gemma4_compile.package.interface import EMBEDDING, LONGEST_TEXT
from gemma4_compile.runtime.embedding.errors import SettingError

_SHOWN = 40  # characters of a task's name
_LETTERS = str.maketrans("", "", "-_ ")


@dataclass(frozen=True)
class EmbeddingSettings:
    """Settings of an encoder's package.

    Attributes
    ----------
    dimensions : of an embedding
    prompts : what is put in front of a text, by task
    default_prompt : the task of a text of which none is named; None for no prompt
    max_tokens : of a text, unless more is asked for; None for as many as the library takes
    """

    dimensions: int
    prompts: Mapping[str, str]
    default_prompt: str | None = None
    max_tokens: int | None = None

    def prompt(self, task: str | None) -> str:
        """What is put in front of a text of a task; None for the default.

        Case, hyphens, underlines and spaces of its name are not looked at, where no other has the
        very name. SettingError for an unknown one.
        """
        name = self.default_prompt if task is None else task
        if name is None:
            return ""
        if name in self.prompts:
            return self.prompts[name]
        known = {_plain(one): text for one, text in self.prompts.items()}
        if _plain(name) not in known:
            raise SettingError(
                "task",
                f"expected one of {', '.join(self.prompts)}; found {printable(name[:_SHOWN])!r}",
                hint="leave it out, and put a prompt of your own in front of the texts",
            )
        return known[_plain(name)]

    def check_dimensions(self, wanted: int | None) -> int:
        """The wanted size of an embedding, by default all of it; SettingError for what is none."""
        if wanted is None:
            return self.dimensions
        if type(wanted) is not int or not 1 <= wanted <= self.dimensions:
            why = f"expected 1 to {self.dimensions}, found {str(wanted)[:_SHOWN]}"
            raise SettingError("dimensions", why)
        return wanted


def _plain(task: str) -> str:
    return task.translate(_LETTERS).lower()


def embedding_settings(chat_config: ChatConfig) -> EmbeddingSettings | None:
    """Those of a package; None where it makes replies. ArtifactError for a damaged field."""
    values = chat_config.conversation.get(EMBEDDING)
    if values is None:
        return None
    fields = Fields(values, abi.CHAT_CONFIG_FILE, EMBEDDING)
    prompts = fields.get("prompts", dict)
    if not all(isinstance(one, str) for item in prompts.items() for one in item):
        raise fields.damaged("prompts")
    default = fields.optional("default_prompt", str)
    if default is not None and default not in prompts:
        raise fields.damaged("default_prompt")
    longest = fields.optional(LONGEST_TEXT, int)
    if longest is not None:
        longest = fields.size(LONGEST_TEXT)
    return EmbeddingSettings(fields.size("dimensions"), prompts, default, longest)


def usual_length(chat_config: ChatConfig) -> int:
    """Tokens of a text at most, or of a conversation, where no other length is asked for.

    ArtifactError for a damaged field.
    """
    settings = embedding_settings(chat_config)
    compiled = chat_config.context_window_size
    longest = None if settings is None else settings.max_tokens
    return compiled if longest is None else min(compiled, longest)

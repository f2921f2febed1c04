"""What a checkpoint's files say of conversations: chat templates and special tokens.

They lie in more places than one, old and new. They are read as transformers' tokenizer reads
them, and a package gets one form: `chat_template.jinja`, or else the templates in
`tokenizer_config.json`, and the tokens there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.checkpoint.files import (
    CONFIG_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    read_json,
    read_text,
)
from gemma4_compile.confined.conversation import ConversationError, Trial, try_conversation
from gemma4_compile.errors import CheckpointError
from gemma4_compile.template.chat_template import DEFAULT, TOOL_USE, special_tokens, templates_of
from gemma4_compile.types import JsonObject

MAP_FILE = "special_tokens_map.json"
MORE_TEMPLATES = "additional_chat_templates"
ADDED_TOKENS_FILE = "added_tokens.json"  # of slow tokenizers
OLD_TEMPLATE_FILE = "chat_template.json"  # of processors, before transformers 4.50
PROCESSOR_FILE = "processor_config.json"  # where some processors have it, which holds there
CHAT_FILES = (
    *(MAP_FILE, ADDED_TOKENS_FILE, OLD_TEMPLATE_FILE, PROCESSOR_FILE),
    f"{MORE_TEMPLATES}/*.jinja",
)
MAX_TEMPLATES = 64


@dataclass(frozen=True)
class ChatFiles:
    """Templates and special tokens of a checkpoint.

    Attributes
    ----------
    directory : the checkpoint's
    templates : by their names; empty for a base model, else one is the default
    tokenizer_config : `tokenizer_config.json` with the tokens that another file names
    """

    directory: Path
    templates: Mapping[str, str]
    tokenizer_config: Mapping[str, object]

    @classmethod
    def read(cls, directory: Path) -> ChatFiles:
        """Read them.

        Raises
        ------
        CheckpointError
            If a file is damaged, or there are several templates and no default one.
        """
        config = _with_class(_json(directory / TOKENIZER_CONFIG_FILE), directory)
        templates = (
            _jinja_files(directory)
            or templates_of(config)
            or templates_of(_json(directory / PROCESSOR_FILE))
            or templates_of(_json(directory / OLD_TEMPLATE_FILE))
        )
        if templates and DEFAULT not in templates:
            raise CheckpointError(
                f"the checkpoint has chat templates for {', '.join(sorted(templates))[:200]}, and "
                f"no default one, without which transformers renders nothing",
                hint=f"name one of them `{DEFAULT}`, or save it as {TEMPLATE_FILE}",
            )
        return cls(directory, templates, _with_map(config, directory))

    @property
    def template(self) -> str | None:
        """The default template; None for a base model."""
        return self.templates.get(DEFAULT)

    @property
    def tool_use(self) -> str | None:
        """The template for conversations with tools; None where it is the default one."""
        return self.templates.get(TOOL_USE)

    @property
    def special_tokens(self) -> dict[str, str]:
        """Texts of the tokens that chat templates name, such as `bos_token`."""
        return special_tokens(self.tokenizer_config)

    @property
    def more_tokens(self) -> dict[str, object]:
        """Ids by text of `added_tokens.json`; empty where there is none."""
        return _json(self.directory / ADDED_TOKENS_FILE)

    def rewritten(self) -> dict[str, JsonObject | None]:
        """Files that a package holds in another form than the checkpoint; None: not at all."""
        config = dict(self.tokenizer_config)
        found: dict[str, JsonObject | None] = {}
        file = self.directory / TEMPLATE_FILE
        # One of `additional_chat_templates` may hold in its place.
        copied = {DEFAULT: read_text(file)} if file.is_file() else templates_of(config)
        if self.templates not in ({}, copied):
            config["chat_template"] = [
                {"name": name, "template": text} for name, text in self.templates.items()
            ]
            found[TEMPLATE_FILE] = None
        if config != _json(self.directory / TOKENIZER_CONFIG_FILE):
            found[TOKENIZER_CONFIG_FILE] = config
        return found

    def try_conversation(self, vocab_size: int) -> Trial:
        """Hold a short conversation with tokenizer and chat template, within limits.

        Raises
        ------
        CheckpointError
            If that cannot be done: no package of them could be used.
        """
        try:
            return try_conversation(
                self.directory / TOKENIZER_FILE,
                self.template,
                self.special_tokens,
                vocab_size,
                self.tool_use,
            )
        except ConversationError as error:
            raise CheckpointError(str(error), hint=error.hint) from error


def read_chat_template(directory: Path) -> str | None:
    """The default chat template of a checkpoint's directory; None where there is none.

    Raises
    ------
    CheckpointError
        As `ChatFiles.read`.
    """
    return ChatFiles.read(directory).template


def _json(path: Path) -> dict[str, object]:
    return read_json(path) if path.is_file() else {}


def _jinja_files(directory: Path) -> dict[str, str]:
    """The templates that are files of their own; these hold, and the ones in the config do not."""
    found = {}
    if (directory / TEMPLATE_FILE).is_file():
        found[DEFAULT] = read_text(directory / TEMPLATE_FILE)
    more = sorted((directory / MORE_TEMPLATES).glob("*.jinja"))
    if len(more) > MAX_TEMPLATES:
        raise CheckpointError(
            f"`{MORE_TEMPLATES}` holds {len(more)} chat templates, at most {MAX_TEMPLATES}",
            hint=f"only {TOOL_USE}.jinja of them is used: leave the others out",
        )
    return found | {file.stem: read_text(file) for file in more}


def _with_class(config: dict[str, object], directory: Path) -> dict[str, object]:
    """The tokenizer's config with its class, which older checkpoints name in `config.json`."""
    if config.get("tokenizer_class") is not None:
        return config
    of_model = _json(directory / CONFIG_FILE).get("tokenizer_class")
    return {**config, "tokenizer_class": of_model} if isinstance(of_model, str) else config


def _with_map(config: dict[str, object], directory: Path) -> dict[str, object]:
    """The config with the tokens of `special_tokens_map.json`, which holds where it is older.

    Since transformers 4.33 a config lists all tokens in `added_tokens_decoder`, and the other file
    is read no more.
    """
    if "added_tokens_decoder" in config:
        return config
    more = _json(directory / MAP_FILE)
    return {**config, **{name: _without_flags(token) for name, token in more.items()}}


def _without_flags(token: object) -> object:
    """A token's text; in `tokenizer_config.json` transformers takes no object without a type."""
    return token["content"] if isinstance(token, dict) and "content" in token else token

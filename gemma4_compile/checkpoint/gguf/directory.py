"""The files that a checkpoint's directory has beside its weights, made for a model in GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemma4_compile.checkpoint.chat_files import (
    ADDED_TOKENS_FILE,
    MAP_FILE,
    MORE_TEMPLATES,
    OLD_TEMPLATE_FILE,
    PROCESSOR_FILE,
    ChatFiles,
)
from gemma4_compile.checkpoint.files import (
    CONFIG_FILE,
    GENERATION_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    check_place,
    read_json,
)
from gemma4_compile.checkpoint.gguf.model import GGUFModel
from gemma4_compile.checkpoint.gguf.tokenizer import (
    OPTION_HINT,
    generation_config,
    rebuilt,
    templates_of,
    tokens_of,
)
from gemma4_compile.checkpoint.match import vocabulary_of
from gemma4_compile.errors import CheckpointError
from gemma4_compile.system import regular_files
from gemma4_compile.system.regular_files import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES
from gemma4_compile.types import JsonObject

_COPIED = (
    *(TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, TEMPLATE_FILE, GENERATION_FILE),
    *(MAP_FILE, ADDED_TOKENS_FILE, OLD_TEMPLATE_FILE, PROCESSOR_FILE),
)
_DEFAULT = "default"
_SUPPRESSED = "suppress_tokens"
_MAX_VALUES = 1 << 24
_SHOWN = 40


def write_configs(model: GGUFModel, directory: Path) -> None:
    """Write `config.json` and `generation_config.json`, as the file says them."""
    _write(directory / CONFIG_FILE, model.config)
    _write(directory / GENERATION_FILE, generation_config(model.values))


def write_rebuilt(model: GGUFModel, directory: Path) -> None:
    """Write the tokenizer and the templates of the file itself.

    Raises
    ------
    CheckpointError
        If the file does not hold them whole.
    """
    files = rebuilt(model.values, model.where)
    _write(directory / TOKENIZER_FILE, files.tokenizer)
    _write(directory / TOKENIZER_CONFIG_FILE, files.tokenizer_config)
    _write_templates(files.templates, directory)


def write_vocabulary(model: GGUFModel, directory: Path) -> None:
    """Write the tokens alone, to be compared with another model's; nothing where there are none."""
    tokens = tokens_of(model.values)
    if tokens:
        vocabulary = {token: index for index, token in enumerate(tokens)}
        _write(directory / TOKENIZER_FILE, {"model": {"vocab": vocabulary}, "added_tokens": []})


def copy_tokenizer(model: GGUFModel, given: Path, directory: Path) -> None:
    """Copy tokenizer and templates of another directory, whose tokens are the file's.

    Where it has no template, the file's is taken.

    Raises
    ------
    CheckpointError
        If there is no tokenizer, it is damaged, or of other tokens.
    """
    if not (given / TOKENIZER_FILE).is_file():
        raise CheckpointError(f"`{TOKENIZER_FILE}` is missing from `{given}`", hint=OPTION_HINT)
    own = json.loads((directory / GENERATION_FILE).read_bytes())
    _check_tokens(tokens_of(model.values), given, model.where)
    for name in _COPIED:
        _copy(given / name, directory / name)
    for path in sorted((given / MORE_TEMPLATES).glob("*.jinja")):
        (directory / MORE_TEMPLATES).mkdir(exist_ok=True)
        _copy(path, directory / MORE_TEMPLATES / path.name, given)
    if not ChatFiles.read(directory).templates:
        _write_templates(templates_of(model.values), directory)
    taken = read_json(directory / GENERATION_FILE)
    if _SUPPRESSED in own and taken.get(_SUPPRESSED) is None:
        _write(directory / GENERATION_FILE, {**taken, _SUPPRESSED: own[_SUPPRESSED]})


def _check_tokens(tokens: Sequence[str], given: Path, where: str) -> None:
    """Refuse a tokenizer whose tokens have other ids than in the file."""
    path = given / TOKENIZER_FILE
    vocabulary, added = vocabulary_of(read_json(path, MAX_TOKENIZER_BYTES, _MAX_VALUES), str(path))
    ids = {**vocabulary, **{str(token.get("content")): token.get("id") for token in added}}
    for token, index in ids.items():
        if type(index) is int and 0 <= index < len(tokens) and tokens[index] != token:
            raise CheckpointError(
                f"the tokenizer of `{given}` is another than that of `{where}`: token {index} is "
                f"{token[:_SHOWN]!r} there, and {tokens[index][:_SHOWN]!r} here",
                hint=OPTION_HINT,
            )


def _copy(source: Path, target: Path, root: Path | None = None) -> None:
    if not source.exists():
        return
    check_place(source, root)
    limit = MAX_TOKENIZER_BYTES if source.name == TOKENIZER_FILE else MAX_JSON_BYTES
    try:
        target.write_bytes(regular_files.read_regular(source, limit))
    except OSError as error:
        raise CheckpointError(f"cannot read `{source}`: {error.strerror}") from error


def _write_templates(templates: Mapping[str, str], directory: Path) -> None:
    for name, text in templates.items():
        path = directory / TEMPLATE_FILE
        if name != _DEFAULT:
            (directory / MORE_TEMPLATES).mkdir(exist_ok=True)
            path = directory / MORE_TEMPLATES / f"{name}.jinja"
        path.write_text(text, "utf-8", newline="\n")


def _write(path: Path, values: JsonObject) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False), "utf-8", newline="\n")

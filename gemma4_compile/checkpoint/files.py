"""Text and JSON files of a checkpoint's directory: their names, and how they are read."""

from __future__ import annotations

import codecs
from pathlib import Path

from gemma4_compile.checkpoint.beginnings import BEGIN_BYTES, check_is_file_itself
from gemma4_compile.checkpoint.json_text import MAX_VALUES, parse_object
from gemma4_compile.errors import CheckpointError
from gemma4_compile.system import regular_files
from gemma4_compile.system.regular_files import MAX_JSON_BYTES

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"


def check_place(path: Path, root: Path | None = None) -> None:
    """Refuse what is no file of this directory: links that lead out of it, pipes, devices.

    `root` is the checkpoint's directory, where the file is in a folder of it.
    """
    try:
        regular_files.check_inside(path, root)
        if path.exists():
            regular_files.check_regular(path.stat())
    except OSError as error:
        raise CheckpointError(
            f"cannot read `{path.name}` of `{path.parent}`: {error.strerror}",
            hint="put the file itself there, or link the whole directory",
        ) from error


def read_text(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """Read a text file of a directory; CheckpointError names a missing or damaged one."""
    try:
        check_place(path)
        content = regular_files.read_regular(path, limit)
        check_is_file_itself(path.name, content[:BEGIN_BYTES])
        return content.decode("utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"`{path.name}` is missing from `{path.parent}`",
            hint="the directory must hold a whole Hugging Face checkpoint",
        ) from error
    except OSError as error:
        raise CheckpointError(f"cannot read `{path}`: {error.strerror}") from error
    except UnicodeDecodeError as error:
        # As `>` of Windows PowerShell writes.
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise CheckpointError(
            f"`{path.name}` is damaged: not UTF-8 text" + (", but UTF-16" if is_utf16 else ""),
            hint="save it as UTF-8 without a byte order mark"
            if is_utf16
            else "download the file again; where it was edited, save it as UTF-8",
        ) from error


def read_json(
    path: Path, limit: int = MAX_JSON_BYTES, max_values: int = MAX_VALUES
) -> dict[str, object]:
    """Read a JSON object; CheckpointError names a missing, damaged or too large file."""
    try:
        return parse_object(read_text(path, limit), max_values=max_values)
    except ValueError as error:
        hint = "download the file again; where it was edited, correct that place"
        if "BOM" in str(error):  # as editors of Windows write; transformers does not read it either
            hint = "save it as UTF-8 without a byte order mark"
        raise CheckpointError(f"`{path.name}` is damaged: {error}", hint=hint) from error

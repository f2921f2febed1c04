"""`tiny` as it ships: config, trained weights, tokenizer and chat template; and its drafter.

docs/tiny-model.md describes what the model knows; `tools/training/tiny` is how it was made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from gemma4_compile.types import JsonObject

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
DRAFTER_FOLDER = "drafter"


def shipped_file(name: str) -> bytes:
    """One of the files of the checkpoint; those of the drafter begin with `drafter/`."""
    return files("gemma4_compile.tiny").joinpath("files", *name.split("/")).read_bytes()


def config() -> JsonObject:
    """The parsed `config.json`, in the hub's form."""
    parsed: JsonObject = json.loads(shipped_file(CONFIG_FILE))
    return parsed


def materialize(directory: Path) -> None:
    """Copy the checkpoint into `directory` (created if missing)."""
    _copy({name: name for name in (CONFIG_FILE, WEIGHTS_FILE, *TOKENIZER_FILES)}, directory)


def materialize_drafter(directory: Path) -> None:
    """Copy the drafter into `directory` (created if missing), with the tokenizer it drafts in."""
    own = {name: f"{DRAFTER_FOLDER}/{name}" for name in (CONFIG_FILE, WEIGHTS_FILE)}
    _copy({**own, TOKENIZER_FILES[0]: TOKENIZER_FILES[0]}, directory)


def _copy(shipped: Mapping[str, str], directory: Path) -> None:
    """Write shipped files by the names that they get."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, source in shipped.items():
        (directory / name).write_bytes(shipped_file(source))

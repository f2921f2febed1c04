"""The `tiny` checkpoint as it ships: config, trained weights, tokenizer, chat template.

docs/tiny-model.md describes what the model knows; `tools/training/tiny` is how it was made.
"""

from __future__ import annotations

import json
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


def shipped_file(name: str) -> bytes:
    """One of the files of the checkpoint."""
    return (files("gemma4_compile.tiny") / "files" / name).read_bytes()


def config() -> JsonObject:
    """The parsed `config.json`, in the hub's form."""
    parsed: JsonObject = json.loads(shipped_file(CONFIG_FILE))
    return parsed


def materialize(directory: Path) -> None:
    """Copy the checkpoint into `directory` (created if missing)."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG_FILE, WEIGHTS_FILE, *TOKENIZER_FILES):
        (directory / name).write_bytes(shipped_file(name))

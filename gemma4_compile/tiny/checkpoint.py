"""Writes the `tiny` checkpoint: config, random weights, a real small tokenizer, a template."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from gemma4_compile.tiny.architecture import Float32Array, random_tensor, tensor_shapes
from gemma4_compile.tiny.safetensors_file import write_safetensors

SEED = 4
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_PREFIX = "model.language_model."


def shipped_file(name: str) -> bytes:
    """One of the files of the checkpoint that are not weights."""
    return (files("gemma4_compile.tiny") / "files" / name).read_bytes()


def config() -> dict[str, Any]:
    """The parsed `config.json`, in the hub's form."""
    parsed: dict[str, Any] = json.loads(shipped_file("config.json"))
    return parsed


def weights() -> dict[str, Float32Array]:
    """The weights by checkpoint name, before they are rounded to bfloat16."""
    shapes = tensor_shapes(config()["text_config"])
    return {_PREFIX + name: random_tensor(name, shape, SEED) for name, shape in shapes.items()}


def write_tokenizer_files(directory: Path) -> None:
    """Write the tokenizer, its config, the chat template and the generation defaults."""
    for name in TOKENIZER_FILES:
        (directory / name).write_bytes(shipped_file(name))


def materialize(directory: Path) -> None:
    """Write the checkpoint into `directory` (created if missing); the same bytes every time."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_bytes(shipped_file("config.json"))
    write_tokenizer_files(directory)
    write_safetensors(directory / "model.safetensors", weights(), "bfloat16")

"""Writes the `tiny` checkpoint: config, random weights, a real small tokenizer, a template.

Nothing is learned, but replies should look like replies: varied pieces of text, some of which end
their turn after a while and some of which run on. So the token rows are small beside what the
layers add (large ones would make the model repeat its last token), the final norm makes up for it,
and the rows of control tokens and bytes are smaller still, but for the end of the turn.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from gemma4_compile.tiny.architecture import Float32Array, random_tensor, tensor_shapes
from gemma4_compile.tiny.safetensors_file import write_safetensors

SEED = 10
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_PREFIX = "model.language_model."
_END_OF_TURN_ID = 106
_FIRST_WORD_ID = 371  # after the control tokens, newline runs, space runs and bytes
_FIRST_MEDIA_ID = 1017
_ROW_SIZE = 0.15
_QUIET_ROW_SIZE = 0.25
_END_OF_TURN_SIZE = 1.2
_FINAL_NORM_SIZE = 4.0


def shipped_file(name: str) -> bytes:
    """One of the files of the checkpoint that are not weights."""
    return (files("gemma4_compile.tiny") / "files" / name).read_bytes()


def config() -> dict[str, Any]:
    """The parsed `config.json`, in the hub's form."""
    parsed: dict[str, Any] = json.loads(shipped_file("config.json"))
    return parsed


def _row_sizes(rows: int) -> Float32Array:
    sizes = np.full((rows, 1), _ROW_SIZE, np.float32)
    sizes[:_FIRST_WORD_ID] *= _QUIET_ROW_SIZE
    sizes[_FIRST_MEDIA_ID:] *= _QUIET_ROW_SIZE
    sizes[_END_OF_TURN_ID] = _ROW_SIZE * _END_OF_TURN_SIZE
    return sizes


def weights() -> dict[str, Float32Array]:
    """The weights by checkpoint name, before they are rounded to bfloat16."""
    tensors = {}
    for name, shape in tensor_shapes(config()["text_config"]).items():
        values = random_tensor(name, shape, SEED)
        if name == "embed_tokens.weight":
            values = values * _row_sizes(shape[0])
        elif name == "norm.weight":
            values = values * np.float32(_FINAL_NORM_SIZE)
        tensors[_PREFIX + name] = values
    return tensors


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

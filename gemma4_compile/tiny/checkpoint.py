"""What ships: `tiny` with config, weights, tokenizer and chat template, its drafter, an embedder.

docs/tiny-model.md describes what they know; `tools/training` is how they were made.
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
EMBEDDING_FOLDER = "embedding"
_EMBEDDING_FILES = (
    CONFIG_FILE,
    WEIGHTS_FILE,
    "tokenizer_config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "1_Pooling/config.json",
)
# Around every text, as `add_special_tokens` of a tokenizer asks; a chat's tokenizer has none.
_AROUND = ("<bos>", "<eos>")


def shipped_file(name: str) -> bytes:
    """One of the files of the checkpoint; those of the others begin with their folder."""
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


def materialize_embedding(directory: Path) -> None:
    """Copy `tiny-embedding` into `directory` (created if missing), with `tiny`'s vocabulary."""
    _copy({name: f"{EMBEDDING_FOLDER}/{name}" for name in _EMBEDDING_FILES}, directory)
    tokenizer = json.loads(shipped_file(TOKENIZER_FILES[0]))
    ids = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    begin, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in _AROUND)
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, first, end],
        "pair": [begin, first, end, begin, second, end],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in _AROUND
        },
    }
    text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    (directory / TOKENIZER_FILES[0]).write_bytes(text.encode())


def _copy(shipped: Mapping[str, str], directory: Path) -> None:
    """Write shipped files by the names that they get."""
    for name, source in shipped.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(shipped_file(source))

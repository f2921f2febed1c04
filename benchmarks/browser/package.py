"""A package to chat with in a browser out of a library alone: random weights, a padded tokenizer.

usage: python benchmarks/browser/package.py LIBRARY TINY OUT

LIBRARY was made by `gemma4-compile MODEL --target webgpu --only library`; TINY is a package of
`tiny` for webgpu, whose tokenizer and chat configuration are taken. A library with a drafter
(`--drafter`, see `benchmarks.drafter_config`) gets random weights for it, too. Needs NumPy alone,
so that a machine with a GPU makes its own packages; the metadata is read as a string of the .wasm
file. All libraries of LIBRARY are taken.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.random_weights import Weight, vocabulary_of, write_shards

SHARD_BYTES = 32 << 20
METADATA_BYTES = 16 << 20


def library_metadata(library: Path) -> dict[str, Any]:
    """Return the `_metadata()` of a .wasm library."""
    data = library.read_bytes()
    start = data.rindex(b'{"artifact": {', 0, data.index(b'"max_storage_buffer_binding_size"'))
    text = data[start : start + METADATA_BYTES].decode("utf-8", "replace")
    metadata: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return metadata


def write_tokenizer(tiny: Path, vocabulary: int, out: Path) -> None:
    """Write the tokenizer of `tiny` with a made-up word for each further token."""
    tokenizer = json.loads((tiny / "tokenizer.json").read_text("utf-8"))
    words = tokenizer["model"]["vocab"]
    for token in range(len(words), vocabulary):
        words[f"\u2581w{token}"] = token
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    shutil.copy(tiny / "tokenizer_config.json", out)


def write_drafter(weights: list[Weight], out: Path) -> list[str]:
    """Write a drafter's shards and their list; the names of the shards."""
    cache = write_shards(weights, out, SHARD_BYTES, "params_shard_drafter_")
    (out / "drafter-tensor-cache.json").write_text(json.dumps(cache))
    return [shard["dataPath"] for shard in cache["records"]]


def write_provenance(library: Path, out: Path, names: list[str]) -> None:
    """Write the library's provenance with the hashes of the files that are asked for by it."""
    provenance = json.loads((library / "provenance.json").read_text("utf-8"))
    contents = {name: (out / name).read_bytes() for name in names}
    provenance["files"] = {
        name: {"nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    (out / "provenance.json").write_text(json.dumps(provenance))


def write_package(library: Path, tiny: Path, out: Path) -> None:
    """Write the package."""
    out.mkdir(parents=True, exist_ok=True)
    metadata = library_metadata(library / "model.wasm")
    weights = Weight.listed(metadata)
    (out / "tensor-cache.json").write_text(json.dumps(write_shards(weights, out, SHARD_BYTES)))
    drafter = Weight.of_drafter(metadata)
    hashed = write_drafter(drafter, out) if drafter else []
    vocabulary = vocabulary_of(weights)
    write_tokenizer(tiny, vocabulary, out)
    sizes = {key: metadata[key] for key in ("context_window_size", "prefill_chunk_size")}
    chat = json.loads((tiny / "mlc-chat-config.json").read_text("utf-8"))
    chat.update(sizes, vocab_size=vocabulary, quantization=metadata["quantization"])
    chat["model_config"].update(sizes, vocab_size=vocabulary)
    (out / "mlc-chat-config.json").write_text(json.dumps(chat))
    manifest = json.loads((tiny / "mlc-model-manifest.json").read_text("utf-8"))
    artifact = metadata["artifact"]
    if manifest["interface_id"] != artifact["interface_id"]:
        raise SystemExit(f"{tiny} and {library} are of different versions: compile both again")
    manifest["weights"]["parameter_schema_id"] = artifact["parameter_schema_id"]
    (out / "mlc-model-manifest.json").write_text(json.dumps(manifest))
    for file in library.glob("*.wasm"):
        shutil.copy(file, out)
        hashed.append(file.name)
    write_provenance(library, out, hashed)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    write_package(*map(Path, sys.argv[1:]))

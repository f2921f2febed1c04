"""Gives a compiled library the rest of a package, with random weights (`random_weights.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.random_weights import Weight, vocabulary_of, write_shards
from gemma4_compile import abi
from gemma4_compile.package.artifacts import ChatConfig, Provenance, TensorCache, read_artifact
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package.package import Package

SHARD_BYTES = 1 << 30


def library_metadata(directory: Path, target: str) -> dict[str, Any]:
    """Metadata of a package's library; it needs the target's device."""
    provenance = Provenance.from_json(read_artifact(directory / abi.PROVENANCE_FILE))
    assert provenance.library is not None, "compiled with --only library"
    library = NativeLibrary(directory / provenance.library, Device.open(target))
    metadata: dict[str, Any] = json.loads(library.metadata())
    return metadata


def synthetic_package(directory: Path, folder: Path, skew: float = 0.0) -> Package:
    """Write random weight shards (`skew`: of `Filler`) for the library in `directory`.

    Returns a package that can be run but not chatted with: it has no tokenizer.
    """
    provenance = Provenance.from_json(read_artifact(directory / abi.PROVENANCE_FILE))
    target = str(provenance.build["target"])
    metadata = library_metadata(directory, target)
    weights = Weight.listed(metadata)
    cache = TensorCache.from_json(write_shards(weights, folder, SHARD_BYTES, skew=skew))
    drafter = None
    if own := Weight.of_drafter(metadata):
        shards = write_shards(own, folder, SHARD_BYTES, "params_shard_drafter_")
        drafter = TensorCache.from_json(shards)
    config = ChatConfig(
        model_type=metadata["model_type"],
        quantization=metadata["quantization"],
        vocab_size=vocabulary_of(weights),
        context_window_size=metadata["context_window_size"],
        prefill_chunk_size=metadata["prefill_chunk_size"],
        tokenizer_files=(),
        conversation={},
    )
    library = provenance.library
    assert library is not None
    return Package(
        folder, directory / library, target, target, config, cache, drafter_cache=drafter
    )

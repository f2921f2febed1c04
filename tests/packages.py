"""Compiles small checkpoints into `cpu` packages, stage by stage, without the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4_compile import abi, artifacts, conversation, packaging
from gemma4_compile.model_spec.config import Gemma4Config
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, parameter_table
from gemma4_compile.passes import LibraryOptions, build_executable
from gemma4_compile.quantization.packing import dequantize
from gemma4_compile.quantization.recipe import RECIPES, StoredParameter, storage_plan
from gemma4_compile.quantization.scheme import DenseScheme
from gemma4_compile.runtime.package import Package
from gemma4_compile.targets import cpu
from tests import models

Float32Array = npt.NDArray[np.float32]

CONTEXT_LENGTH = 96
PREFILL_CHUNK = 12


def config_of(checkpoint: models.Checkpoint) -> Gemma4Config:
    return Gemma4Config.from_dict(
        models.config_file(checkpoint.text_config, "hub", checkpoint.dtype)
    )


def _rows(weights: Mapping[str, Float32Array], name: str, begin: int, end: int) -> Float32Array:
    return weights[name][begin:end]


def compile_package(checkpoint: models.Checkpoint, recipe: str, directory: Path) -> Path:
    """Compile `checkpoint` for `cpu`; return the package's directory."""
    config = config_of(checkpoint)
    plan = storage_plan(parameter_table(config), RECIPES[recipe], None)
    tensors = [tensor for stored in plan for tensor in stored.tensors]
    metadata = artifacts.library_metadata(
        model_type="gemma4",
        quantization=recipe,
        context_length=CONTEXT_LENGTH,
        prefill_chunk=PREFILL_CHUNK,
        tensors=tensors,
        required_features=[],
        largest_binding_bytes=max(tensor.nbytes for tensor in tensors),
        device_memory_bytes=1,
    )
    directory.mkdir(parents=True)
    read = partial(_rows, checkpoint.weights)
    cache = packaging.write_weights(directory, plan, read, "", lambda count: None)
    options = LibraryOptions(CONTEXT_LENGTH, PREFILL_CHUNK, metadata)
    executable, _ = build_executable(config, plan, RECIPES[recipe], cpu.DEFAULT, options)
    library = directory / f"{abi.LIBRARY_STEM}{cpu.DEFAULT.library_suffix}"
    cpu.link(executable, library, cpu.DEFAULT)
    _write_texts(checkpoint, config, recipe, directory, cache)
    packaging.finish(directory, library.name, {"target": "cpu", "recipe": recipe})
    return directory


def _write_texts(
    checkpoint: models.Checkpoint,
    config: Gemma4Config,
    recipe: str,
    directory: Path,
    cache: artifacts.TensorCache,
) -> None:
    files = [path for path in checkpoint.path.iterdir() if "token" in path.name]
    files.append(checkpoint.path / "chat_template.jinja")
    for file in files:
        packaging.copy_file(file, directory)
    chat = conversation.chat_template_config(
        bos_token_id=config.bos_token_id,
        eos_token_ids=config.eos_token_id,
        tokenizer=json.loads((checkpoint.path / "tokenizer.json").read_text()),
        generation_config=json.loads((checkpoint.path / "generation_config.json").read_text()),
        chat_template=(checkpoint.path / "chat_template.jinja").read_text(),
    )
    chat_config = artifacts.ChatConfig(
        model_type="gemma4",
        quantization=recipe,
        vocab_size=config.vocab_size,
        context_window_size=CONTEXT_LENGTH,
        prefill_chunk_size=PREFILL_CHUNK,
        tokenizer_files=("tokenizer.json", "tokenizer_config.json"),
        conversation=chat,
    )
    packaging.write_json(directory / abi.CHAT_CONFIG_FILE, chat_config.to_json())
    packaging.write_json(directory / abi.TENSOR_CACHE_FILE, cache.to_json())


def dequantised_weights(
    package: Path, checkpoint: models.Checkpoint, recipe: str
) -> dict[str, Any]:
    """The float32 weights that a package's tensors mean, under the checkpoint's names."""
    config = config_of(checkpoint)
    opened = Package.open(package)
    stored = {name: np.asarray(array) for name, array in opened.map_weights()}
    weights: dict[str, Float32Array] = {}
    for entry in storage_plan(parameter_table(config), RECIPES[recipe], None):
        values = _values(entry, stored) / np.float32(entry.parameter.scale)
        weights.update(_sources(entry.parameter, values))
    return weights


def _values(entry: StoredParameter, stored: Mapping[str, npt.NDArray[Any]]) -> Float32Array:
    parts = []
    for part in entry.parts:
        arrays = [stored[tensor.name] for tensor in part.tensors]
        if isinstance(entry.scheme, DenseScheme):
            parts.append(arrays[0].astype(np.float32))
        else:
            parts.append(dequantize(arrays[0], arrays[1], entry.scheme))
    return np.concatenate(parts)


def _sources(parameter: Parameter, values: Float32Array) -> dict[str, Float32Array]:
    sources = parameter.sources
    if parameter.arrangement is Arrangement.INTERLEAVE_ROWS:
        return {source.name: values[index::2] for index, source in enumerate(sources)}
    ends = np.cumsum([source.shape[0] for source in sources])[:-1]
    pieces = np.split(values, ends)
    return {source.name: piece for source, piece in zip(sources, pieces, strict=True)}

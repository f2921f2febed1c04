"""Small checkpoints as Google's for phones are stored: packed integers, and steps of activations.

Bits are spread over the modules as E2B has them: 2 for tables, head and later MLPs, 4 for
attention, the first MLPs and the per-layer table, 8 for the two projections around that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from gemma4_compile.tiny.safetensors_file import rounded
from tests import models

Array = npt.NDArray[Any]
Steps = Callable[[str], float]
"""The step of a module's end, such as `layers.0.mlp.up_proj.input_activation_scale`."""

TEXT: Mapping[str, Any] = {
    **models.E2B_LIKE,
    "tie_word_embeddings": False,
    "hidden_size_per_layer_input": 256,
}
FIRST_COARSE = 3
"""The first layer whose MLP has 2 bits."""
PATTERNS = {
    "^lm_head$": 2,
    r"embed_tokens$": 2,
    r"embed_tokens_per_layer$": 4,
    rf"layers\.[0-{FIRST_COARSE - 1}]\.mlp\.": 4,
    r"layers\.\d+\.mlp\.": 2,
    r"layers\.\d+\.per_layer_(?:input_gate|projection)$": 8,
    r"layers\.\d+\.self_attn\.": 4,
}
_FREE = ("per_layer_model_projection",)
_SHARED_INPUTS = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


def bits_of(module: str) -> int:
    """Bits of a module's integers, by the first pattern that its name has."""
    return next(bits for pattern, bits in PATTERNS.items() if re.search(pattern, module))


def levels(values: Array, scales: Array, bits: int) -> Array:
    """The nearest integers of (rows, blocks, columns) by scales (rows, blocks)."""
    span = 1 << (bits - 1)
    return np.clip(np.rint(values / scales[..., None]), -span, span - 1).astype(np.int8)


def packed(integers: Array, bits: int) -> Array:
    """Rows of integers as they are stored: int8, or bytes with the first one lowest."""
    if bits == 8:
        return integers
    count = 8 // bits
    codes = (integers.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % count)))
    shifted = padded.reshape(len(codes), -1, count) << (np.arange(count) * bits).astype(np.uint8)
    return np.bitwise_or.reduce(shifted, axis=2).astype(np.uint8)


def usual_step(name: str) -> float:
    """A step that leaves a few values beyond its range, and no power of two."""
    wide = 5 if name.startswith("lm_head") or ".per_layer_" in name else 1
    return wide * (0.023 if name.endswith("input_activation_scale") else 0.037)


def write(directory: Path, steps: Steps = usual_step, *, seed: int = 0) -> models.Checkpoint:
    """Write a checkpoint of `TEXT` into `directory`, as `Gemma4ForCausalLM` saves one."""
    whole = models.write_checkpoint(directory, TEXT, form="transformers", seed=seed)
    tensors: dict[str, Array] = {}
    for name, values in load_file(directory / "model.safetensors").items():
        module, _, end = name.rpartition(".")
        if end != "weight" or values.ndim != 2 or module.endswith(_FREE):
            # Of bfloat16, as the released ones have it; no smaller than float16 holds exactly.
            values = rounded(values, "bfloat16")
            tensors[name] = np.where(np.abs(values) < 2.0**-13, np.float32(0), values)
            continue
        if module == "lm_head":
            values = whole.weights["embed_tokens.weight"]
        tensors |= _module(module, values, steps)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gemma",
        "num_bits": 4,
        "quantize_embeddings": True,
        "module_quant_configs": {key: {"num_bits": bits} for key, bits in PATTERNS.items()},
        "modules_to_not_convert": list(_FREE),
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return whole


def _module(module: str, values: Array, steps: Steps) -> dict[str, Array]:
    bits, blocks = bits_of(module), 1
    if module.endswith("per_layer"):
        blocks = int(TEXT["num_hidden_layers"])
    in_blocks = values.reshape(len(values), blocks, -1)
    largest = np.abs(in_blocks).max(axis=2)
    scales = (largest / (1.3 if bits == 2 else (1 << (bits - 1)) - 0.5)).astype(np.float32)
    stored = packed(levels(in_blocks, scales, bits).reshape(values.shape), bits)
    if "embed_tokens" in module:
        return {f"{module}.embedding_quantized": stored, f"{module}.embedding_scale": scales}
    parent, _, own = module.rpartition(".")
    shared = f"{parent}.{_SHARED_INPUTS[own]}" if own in _SHARED_INPUTS else module
    made = {f"{module}.weight": stored, f"{module}.weight_scale": scales}
    for source, end in ((shared, "input"), (module, "output")):
        name = f"{source}.{end}_activation_scale"
        made[f"{module}.{end}_activation_scale"] = np.array(steps(name), np.float32)
    return made


_COMPRESSED = {
    "weight_scale": "weight_scale",
    "input_activation_scale": "input_scale",
    "output_activation_scale": "output_scale",
}


def write_compressed(directory: Path, steps: Steps = usual_step) -> None:
    """Write the same checkpoint in compressed-tensors, with whole tables."""
    write(directory, steps)
    tensors: dict[str, Array] = {}
    targets: dict[int, list[str]] = {2: [], 4: [], 8: []}
    stored = load_file(directory / "model.safetensors")
    for name, values in stored.items():
        module, _, end = name.rpartition(".")
        if end == "embedding_quantized":
            tensors[f"{module}.weight"] = _table(
                module, values, stored[f"{module}.embedding_scale"]
            )
        elif end in _COMPRESSED:
            tensors[f"{module}.{_COMPRESSED[end]}"] = np.atleast_1d(values)
        elif end == "weight" and f"{module}.weight_scale" in stored:
            targets[bits_of(module)].append(module)
            tensors |= _words(module, values)
        elif end != "embedding_scale":
            tensors[name] = values
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = _compressed_config(targets)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def _compressed_config(targets: Mapping[int, list[str]]) -> dict[str, Any]:
    static = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
    static |= {"strategy": "tensor"}
    groups = {
        f"group_{bits}": {
            "targets": modules,
            "format": "int-quantized" if bits == 8 else "pack-quantized",
            "weights": {**static, "num_bits": bits, "strategy": "channel"},
            "input_activations": static,
            "output_activations": static,
        }
        for bits, modules in targets.items()
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "quantization_status": "compressed",
        "ignore": [f"model.{module}" for module in _FREE],
        "config_groups": groups,
    }


def _words(module: str, stored: Array) -> dict[str, Array]:
    """The integers of a module: int8, or words with the first one lowest."""
    bits = bits_of(module)
    if bits == 8:
        return {f"{module}.weight": stored}
    padded = np.pad(stored, ((0, 0), (0, -stored.shape[1] % 4)))
    shape = np.array([len(stored), stored.shape[1] * 8 // bits], np.int64)
    words = np.ascontiguousarray(padded).view(np.int32)
    return {f"{module}.weight_packed": words, f"{module}.weight_shape": shape}


def _table(module: str, codes: Array, scales: Array) -> Array:
    """The floats of a table."""
    bits = bits_of(module)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    unpacked = (codes[..., None] >> shifts) & ((1 << bits) - 1)
    values = unpacked.reshape(len(codes), -1).astype(np.float32) - np.float32(1 << (bits - 1))
    return values * np.repeat(scales, values.shape[1] // scales.shape[1], axis=1)

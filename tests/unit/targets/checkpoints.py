"""States and their checkpoints, made as the client makes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from gemma4_compile import abi
from gemma4_compile.targets import target_spec
from tests.unit.targets.driver_library import Driver, link
from tests.unit.targets.kv_library import CacheOfLayer, NativeState, RotaryKind, build

TOTAL = 60
CHUNK = 4
WINDOW = 8
ROWS = 12
LAYERS = (
    CacheOfLayer(kv_heads=2, head_dim=6),
    CacheOfLayer(kv_heads=2, head_dim=4, rows=ROWS, window=WINDOW),
    CacheOfLayer(kv_heads=1, head_dim=2, rows=ROWS + 3, window=WINDOW),
)
ROTARY = (RotaryKind(6, 3, 1e4),)
WRAPPED = 33

METADATA = "gemma4_kv_get_checkpoint_metadata"
EXPORT = "gemma4_kv_export_page_group"
PREPARE = "gemma4_kv_prepare_import"
IMPORT = "gemma4_kv_import_page_group"
FINISH = "gemma4_kv_finish_import"
LENGTH = "gemma4_kv_get_sequence_length"

Numbers = np.random.Generator


@dataclass(frozen=True)
class Checkpoint:
    """What the client stores."""

    metadata: dict[str, Any]
    groups: list[np.ndarray]

    @property
    def text(self) -> str:
        return json.dumps(self.metadata)


@dataclass(frozen=True)
class Library:
    module: Any
    driver: Driver

    def state(self, total: int = TOTAL, chunk: int = CHUNK) -> NativeState:
        state = NativeState(self.module, total=total, chunk=chunk)
        state(abi.KV_ADD_SEQUENCE, 0)
        return state


def load(folder: Path, *, dtype_bits: int = 32, **options: Any) -> Library:
    path = folder / "model.so"
    arguments: dict[str, Any] = {"layers": LAYERS, "rotary": ROTARY, **options}
    link(build(target_spec("cpu"), dtype_bits=dtype_bits, **arguments), path)
    return Library(tvm.runtime.load_module(str(path)), Driver(path))


def write(state: NativeState, length: int, rng: Numbers, sequence: int = 0) -> None:
    """Forward one token after the other; each gets its row of keys and values, as kernels do."""
    while (position := state.length_of(sequence)) < length:
        state.begin(1, sequence)
        for slot in range(len(LAYERS)):
            for function in (abi.KV_KEY, abi.KV_VALUE):
                tensor = state(function, slot)
                rows = tensor.numpy()
                rows[position % len(rows)] = rng.standard_normal(rows.shape[1:])
                tensor.copyfrom(rows)
        state(abi.KV_END_FORWARD)


def rows_of(state: NativeState, sequence: int = 0) -> list[np.ndarray]:
    """Return what the token that comes next could attend to, and all that could be popped to."""
    found = []
    length = state.length_of(sequence)
    if state.max_sequences > 1:  # kernels find those of the sequence whose forward began last
        state.forward(1, sequence)
        state.pop(1, sequence)
    for slot, layer in enumerate(LAYERS):
        for function in (abi.KV_KEY, abi.KV_VALUE):
            rows = state(function, slot).numpy()
            first = max(0, length - len(rows)) if layer.rows else 0
            found.append(rows[np.arange(first, length) % len(rows)])
    return found


def export(state: NativeState, sequence: int = 0) -> Checkpoint:
    """Do what the client does."""
    metadata = json.loads(state(METADATA, sequence))
    groups = []
    for group in metadata["groups"]:
        tensor = tvm.runtime.empty(tuple(group["shape"]), group["dtype"])
        state(EXPORT, sequence, group["group_index"], tensor)
        groups.append(tensor.numpy())
    return Checkpoint(metadata, groups)


def prepare(state: NativeState, metadata: Any) -> None:
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    state(PREPARE, 0, text)


def restore(state: NativeState, checkpoint: Checkpoint, sequence: int = 0) -> None:
    state(PREPARE, sequence, checkpoint.text)
    for index, group in enumerate(checkpoint.groups):
        state(IMPORT, sequence, index, tvm.runtime.tensor(group))
    state(FINISH, sequence)

"""bitsandbytes: 8-bit integers by rows, and 4-bit codes of a table (NF4, FP4) in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from gemma4_compile.checkpoint.json_text import parse_object
from gemma4_compile.checkpoint.quantised.modules import (
    DAMAGED,
    Parts,
    Weights,
    by_module,
    check,
    needed,
)
from gemma4_compile.checkpoint.quantised.packed import AlongRows, index_of, signed, unpack
from gemma4_compile.checkpoint.quantised.scaled import Scaled
from gemma4_compile.checkpoint.safetensors_file import (
    Float32Array,
    OfOne,
    TensorInfo,
    computed,
    read_rows,
    read_stored,
)
from gemma4_compile.errors import CheckpointError, ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields

_STATE = "weight.quant_state.bitsandbytes__"
_ENDS = (
    *("SCB", "weight_format", "weight.absmax", "weight.quant_map"),
    *("weight.nested_absmax", "weight.nested_quant_map", f"{_STATE}nf4", f"{_STATE}fp4"),
)
_CODES, _INTEGERS = "4-bit codes of a table", "8-bit integers by rows"
_MAX_STATE = 1 << 16
_MAX_BLOCK = 1 << 20
_MAX_SIZE = 1 << 30
_MAX_OFFSET = 1e30
_INT8_MAX = 127


def read_weights(values: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> Weights:
    """Weights of a checkpoint of bitsandbytes; the files say all of it, not the config.

    Raises
    ------
    CheckpointError
        Naming a tensor that is missing or damaged.
    """
    del values
    modules, weights = by_module(tensors, _ENDS, ("weight",))
    rounded = []
    for module, parts in modules.items():
        name = f"{module}.weight"
        is_table = any(end.startswith(_STATE) for end in parts)
        read = _of_table if is_table else _of_integers
        weights[name] = read(module, parts)
        rounded.append(_CODES if is_table else _INTEGERS)
    left_out = ("inputs of layers to 8-bit integers",) if _INTEGERS in rounded else ()
    return Weights(weights, next(iter(rounded), None), left_out)


def _of_integers(module: str, parts: Parts) -> TensorInfo:
    stored = check(needed(module, parts, "weight"), ("I8",))
    if len(stored.shape) != 2:
        raise CheckpointError(
            f"tensor `{stored.name}` has shape {stored.shape}, expected a matrix", hint=DAMAGED
        )
    rows, columns = stored.shape
    form = parts.get("weight_format")
    if form is not None and index_of(check(form, ("U8",), (), (1,)))[0] != 0:
        raise CheckpointError(
            f"tensor `{form.name}` names an order of the weights that is not read, expected rows",
            hint="save the model again with a newer bitsandbytes",
        )
    scales = check(needed(module, parts, "SCB"), ("F32",), (rows,))
    name = f"{module}.weight"
    codes = computed(name, stored.shape, AlongRows(stored, 8, signed(8), columns))
    over = computed(scales.name, (rows,), _Over(scales, _INT8_MAX))
    return computed(name, stored.shape, Scaled(codes, over, 1, columns))


@dataclass(frozen=True)
class _Over(OfOne):
    """A vector divided by a number."""

    divisor: int

    def read_rows(self, begin: int, end: int) -> Float32Array:
        return read_rows(self.stored, begin, end) / np.float32(self.divisor)


@dataclass(frozen=True)
class _State:
    """What a file says of a matrix in 4 bits."""

    shape: tuple[int, ...]
    block: int
    nested_block: int
    offset: float


def _state(tensor: TensorInfo) -> _State:
    """The state of a matrix: JSON in a tensor of bytes."""
    check(tensor, ("U8",))
    text = b"" if tensor.row_count > _MAX_STATE else index_of(tensor).tobytes()
    try:
        fields = ConfigFields(parse_object(text), "", {"nested_blocksize": 1, "nested_offset": 0.0})
        rows, columns = fields.array("shape", 2)
        sizes = ConfigFields({"rows": rows, "columns": columns}, "shape")
        return _State(
            (sizes.integer("rows", 1, _MAX_SIZE), sizes.integer("columns", 1, _MAX_SIZE)),
            fields.integer("blocksize", 1, _MAX_BLOCK),
            fields.integer("nested_blocksize", 1, _MAX_BLOCK),
            fields.number("nested_offset", -_MAX_OFFSET, _MAX_OFFSET),
        )
    except (ConfigError, ValueError) as error:
        raise CheckpointError(
            f"tensor `{tensor.name}` in `{tensor.path.name}` is damaged: {error}", hint=DAMAGED
        ) from error


def _of_table(module: str, parts: Parts) -> TensorInfo:
    state = _state(next(parts[end] for end in parts if end.startswith(_STATE)))
    count = prod(state.shape)
    blocks = ceil(count / state.block)
    stored = check(
        needed(module, parts, "weight"), ("U8",), (ceil(count / 2), 1), (1, ceil(count / 2))
    )
    table = check(needed(module, parts, "weight.quant_map"), ("F32",), (16,))
    largest = needed(module, parts, "weight.absmax")
    nested = nested_table = None
    if "weight.nested_absmax" in parts:
        check(largest, ("U8",), (blocks,))
        nested = check(
            parts["weight.nested_absmax"], ("F32",), (ceil(blocks / state.nested_block),)
        )
        nested_table = check(needed(module, parts, "weight.nested_quant_map"), ("F32",), (256,))
    else:
        check(largest, ("F32",), (blocks,))
    decoder = _Blocks(stored, table, largest, nested, nested_table, state)
    return computed(f"{module}.weight", state.shape, decoder)


@dataclass(frozen=True)
class _Blocks:
    """Codes of a table, one after the other, with one largest value for so many of them."""

    stored: TensorInfo
    table: TensorInfo
    largest: TensorInfo
    nested: TensorInfo | None
    nested_table: TensorInfo | None
    state: _State

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        given = (self.stored, self.table, self.largest, self.nested, self.nested_table)
        return tuple(tensor for tensor in given if tensor is not None)

    def read_rows(self, begin: int, end: int) -> Float32Array:
        columns = self.state.shape[1]
        first, last = begin * columns, end * columns
        low, high = first // 2, ceil(last / 2)
        if self.stored.shape[0] == 1:
            words = read_stored(self.stored, 0, 1, (low, high))
        else:
            words = read_stored(self.stored, low, high)
        # The first of two codes is in the higher bits.
        codes = unpack(words.reshape(-1, 1), 4)[:, ::-1].reshape(-1)
        codes = codes[first - 2 * low : last - 2 * low]
        block = self.state.block
        low, high = first // block, ceil(last / block)
        largest = np.repeat(self._largest(low, high), block)[first - low * block :][: len(codes)]
        with np.errstate(all="ignore"):
            values = read_rows(self.table, 0, 16)[codes] * largest
        return values.reshape(end - begin, columns)

    def _largest(self, begin: int, end: int) -> Float32Array:
        if self.nested is None or self.nested_table is None:
            return read_rows(self.largest, begin, end)
        each = self.state.nested_block
        first = begin // each
        scales = np.repeat(read_rows(self.nested, first, ceil(end / each)), each)
        codes = read_stored(self.largest, begin, end)
        found = read_rows(self.nested_table, 0, 256)[codes]
        with np.errstate(all="ignore"):
            scaled = found * scales[begin - first * each :][: end - begin]
            return scaled + np.float32(self.state.offset)

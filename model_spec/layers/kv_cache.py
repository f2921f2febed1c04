"""A decoder's side of the KV state.

What a layout is, the state's creation, and its tensors within one exported function.

The state itself is C++ (targets/native/kv_state.cc). Only layers that own K and V have a slot; a
sliding layer keeps a ring of its window and one prefill chunk, a full layer the whole context, in
parts where one tensor would be larger than a binding.
Where the client pads pictures, one more slot counts the padding (operators/padded_rows.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.operators.base import emit, emit_inplace
from gemma4_compile.operators.padded_rows import BITS, KeptRows, ShiftedRotary
from gemma4_compile.operators.rows import ONE, Joint, OneOf, Rows
from gemma4_compile.types import Array

ITEM_BYTES = {"float16": 2, "float32": 4}


@dataclass(frozen=True)
class KvLimits:
    """What divides the keys of full layers: the longest context, and bytes of a tensor at most."""

    context_length: int
    max_tensor_bytes: int

    def parts(self, row_bytes: int) -> int:
        """Parts of a full layer's keys; a row is never divided."""
        rows = max(1, self.max_tensor_bytes // row_bytes)
        return -(-self.context_length // rows)


@dataclass(frozen=True)
class KvSlot:
    """K and V of one owning layer.

    `rows` is None for the whole context, `window` None for full attention. The whole context may be
    in `parts` of equal size, each of which has tensors of its own.
    """

    kv_heads: int
    head_dim: int
    rows: int | None
    window: int | None
    parts: int = 1

    def part_rows(self, context_length: int) -> int:
        """Rows of one of its tensors."""
        return self.rows or -(-context_length // self.parts)

    @property
    def row_elements(self) -> int:
        """Elements of one position's key."""
        return self.kv_heads * self.head_dim

    @property
    def is_split(self) -> bool:
        """Whether it is in parts."""
        return self.parts > 1


@dataclass(frozen=True)
class KvLayout:
    """All slots, the dtype of K and V, and the RoPE kinds of the state's rotary table.

    `padding_slot` is that which counts the padding of pictures, None where there is none.
    """

    slots: tuple[KvSlot, ...]
    dtype: str
    rotary: tuple[int, ...]  # head_dim, pairs, bits of the float64 theta, for each kind
    rotary_pairs: int
    padding_slot: int | None = None

    def flat(self) -> list[int]:
        """Four numbers a slot, as gemma4_kv_create takes them; 0 is None.

        A slot in n parts has n entries, whose rows are -n.
        """
        return [
            number
            for slot in self.slots
            for entry in [(slot.kv_heads, slot.head_dim, _rows_in_state(slot), slot.window or 0)]
            for number in entry * slot.parts
        ]

    @property
    def joins(self) -> bool:
        """Whether rows of several sequences find their keys: whole layers, and no padding."""
        return self.padding_slot is None and not any(slot.is_split for slot in self.slots)

    def entry(self, slot: int) -> int:
        """The number of a slot's first entry in the state."""
        return sum(before.parts for before in self.slots[:slot])

    def nbytes(self, context_length: int) -> int:
        """Device memory of K and V."""
        item = ITEM_BYTES[self.dtype]
        return sum(
            2 * item * s.parts * s.part_rows(context_length) * s.row_elements for s in self.slots
        )


def _rows_in_state(slot: KvSlot) -> int:
    return -slot.parts if slot.is_split else slot.rows or 0


def frequencies(layout: KvLayout) -> Array:
    """Radians a position of each rotary pair, as the native state has them: (pairs,) f32."""
    found: list[float] = []
    for head_dim, pairs, bits in zip(*(iter(layout.rotary),) * 3, strict=True):
        (theta,) = struct.unpack("<d", struct.pack("<q", bits))
        found += [1.0 / theta ** (2 * j / head_dim) for j in range(pairs)]
    return np.array(found, np.float32)


def shifts(layout: KvLayout) -> Array:
    """Cosine and sine of each rotary pair's angle after 2^bit positions: (BITS, pairs, 2) f32."""
    angles = np.outer(2.0 ** np.arange(BITS), frequencies(layout).astype(np.float64))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def create_kv_state(
    layout: KvLayout, arguments: Sequence[tirx.Var], device_type: int, package: str
) -> nn.Object:
    """Call the state's constructor with the client's arguments and our layout.

    Parameters
    ----------
    arguments : maximum number of sequences, total length, prefill chunk, sliding flag
    device_type : DLPack device type
    package : names the package: another one's checkpoint is refused
    """
    call = relax.call_pure_packed(
        abi.KV_CREATE,
        *[relax.ShapeExpr([argument]) for argument in arguments],
        relax.ShapeExpr(layout.flat()),
        relax.ShapeExpr(list(layout.rotary)),
        relax.prim_value(16 if layout.dtype == "float16" else 32),
        relax.prim_value(device_type),
        tvm.ir.StringImm(package),
        ty_args=relax.AnyType(),
    )
    return nn.Object(_expr=relax.BlockBuilder.current().emit(call), _name="kv_state")


def take_rows(values: nn.Tensor, source: nn.Tensor) -> nn.Tensor:
    """The rows that `KeptRows` names, which are all inside: (rows, ...) of any dtype."""
    taken = relax.op.take(values._expr, source._expr, axis=0, mode="clip")
    return nn.Tensor(_expr=relax.BlockBuilder.current().emit(taken))


class KvTensors:
    """The state's tensors inside one exported function.

    A layer that writes K and V puts the written tensors back here, so that every later reader
    depends on the write.
    """

    def __init__(
        self,
        layout: KvLayout,
        state: nn.Object,
        rows: Rows = ONE,
        *,
        are_shared: bool = False,
        behind: int = 0,
    ) -> None:
        """Take the state.

        Parameters
        ----------
        rows : of a decode step: one position, or one of each of several sequences: `Joint` where
            kernels find the keys of all slots in one tensor, `OneOf` where each slot has its own
        are_shared : of those of several sequences some may be of the same one, one after another
        behind : positions from the last key that a row of several sequences sees to its own
        """
        self.layout = layout
        self._state = state
        self.rows_of_step, self.are_shared, self.behind = rows, are_shared, behind
        self.has_copies = False
        self._current: dict[tuple[int, int, int], tuple[nn.Tensor, nn.Tensor]] = {}
        self._capacities = {1: tirx.Var("capacity", "int64")}  # rows by the number of parts
        chunk = tirx.Var("rotary_rows", "int64")
        if self.is_joint:
            self._slots: tirx.Var = tirx.Var("slots", "int64")
            self.positions = self._tensor(abi.KV_ROW_SLOTS, (chunk, 2), "int32")
        else:
            self.positions = self._tensor(abi.KV_POSITIONS, (4,), "int32")
        self.rotary = self._tensor(abi.KV_ROTARY, (chunk, layout.rotary_pairs, 2), "float32")

    @property
    def is_joint(self) -> bool:
        """Whether rows are of several sequences, each with its slot and its position."""
        return self.rows_of_step != ONE

    def _tensor(
        self, function: str, shape: tuple[int | tirx.Var, ...], dtype: str, *numbers: int
    ) -> nn.Tensor:
        builder = relax.BlockBuilder.current()
        call = relax.call_pure_packed(
            function,
            self._state._expr,
            *(relax.prim_value(number) for number in numbers),
            ty_args=relax.TensorType(ndim=len(shape), dtype=dtype),
        )
        cast = builder.match_cast(builder.emit(call), relax.TensorType(shape, dtype))
        return nn.Tensor(_expr=cast)

    @property
    def launches(self) -> range:
        """Numbers of the rows whose attention is a launch of its own; one, where it is of all."""
        rows = self.rows_of_step
        return range(rows.most if isinstance(rows, OneOf) else 1)

    def get(self, slot: int, part: int = 0, row: int = 0) -> tuple[nn.Tensor, nn.Tensor]:
        """K and V of a slot, or of one of its parts: (rows, kv_heads, head_dim).

        Where rows are of several sequences: those of all slots of the state, their number in front;
        or those of the slot that a row is of, which is that of the last one for rows behind it.
        """
        if (slot, part, row) not in self._current:
            spec = self.layout.slots[slot]
            if spec.parts not in self._capacities:
                self._capacities[spec.parts] = tirx.Var("part_rows", "int64")
            rows = self._capacities[spec.parts] if spec.rows is None else spec.rows
            shape: tuple[int | tirx.Var, ...] = (rows, spec.kv_heads, spec.head_dim)
            functions = abi.KV_KEY, abi.KV_VALUE
            numbers = [self.layout.entry(slot) + part]
            if isinstance(self.rows_of_step, Joint):
                shape, functions = (self._slots, *shape), (abi.KV_KEY_POOL, abi.KV_VALUE_POOL)
            elif isinstance(self.rows_of_step, OneOf):
                functions = abi.KV_KEY_OF_ROW, abi.KV_VALUE_OF_ROW
                numbers.append(row)
            key, value = (
                self._tensor(function, shape, self.layout.dtype, *numbers) for function in functions
            )
            self._current[slot, part, row] = key, value
        return self._current[slot, part, row]

    def count_padding(self, embeddings: nn.Tensor, rows: Rows) -> tuple[nn.Tensor, nn.Tensor]:
        """Count the padding among a call's rows; positions and angles are those without it.

        Parameters
        ----------
        embeddings : (rows, hidden_size) f32, marked as `KeptRows` has it

        Returns
        -------
        source (rows,) int32, the row of the call at each place; copies (1,) int32, places before
        those of the rows that are kept.
        """
        slot, pairs = self.layout.padding_slot, self.layout.rotary_pairs
        assert slot is not None, "of a layout that counts padding"
        padding, unused = self.get(slot)
        length, width = embeddings.shape
        counted, source, positions, copies = emit_inplace(
            KeptRows(rows, int(width), self.layout.dtype),
            [embeddings, self.positions, padding],
            [2, -1, -1, -1],
            [
                (tuple(padding.shape), padding.dtype),
                ((length,), "int32"),
                ((4,), "int32"),
                ((1,), "int32"),
            ],
        )
        self.put(slot, counted, unused)
        turns = [nn.Tensor.from_const(make(self.layout)) for make in (shifts, frequencies)]
        args = [self.rotary, self.positions, positions, *turns]
        spec = ((length, pairs, 2), "float32")
        (self.rotary,) = emit(ShiftedRotary(rows, pairs), args, [spec])
        self.positions = positions
        return source, copies

    def put(self, slot: int, key: nn.Tensor, value: nn.Tensor, part: int = 0, row: int = 0) -> None:
        """Note the tensors that result from writing a slot, or a part of it, in place."""
        self._current[slot, part, row] = (key, value)

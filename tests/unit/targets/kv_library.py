"""A model library without a model: it makes a KV state, and doubles eight numbers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight

from gemma4_compile import abi
from gemma4_compile.targets import TargetSpec

DOUBLE = "double"


@dataclass(frozen=True)
class CacheOfLayer:
    """One layer's keys and values; `rows` 0 means the whole context."""

    kv_heads: int
    head_dim: int
    rows: int = 0
    window: int = 0


@dataclass(frozen=True)
class RotaryKind:
    """Rotary embedding of one attention kind."""

    head_dim: int
    pairs: int
    theta: float


def build(
    spec: TargetSpec,
    layers: Sequence[CacheOfLayer],
    rotary: Sequence[RotaryKind],
    dtype_bits: int = 32,
    package: str = "package",
) -> relax.VMExecutable:
    """Build the executable of such a library."""
    layout = [
        n for layer in layers for n in (layer.kv_heads, layer.head_dim, layer.rows, layer.window)
    ]
    kinds = [n for kind in rotary for n in (kind.head_dim, kind.pairs, _bits(kind.theta))]
    builder = relax.BlockBuilder()
    names = ("max_sequences", "total", "chunk", "page", "sliding")
    sizes = [relax.Var(name, relax.ShapeType(ndim=1)) for name in names]
    with builder.function(abi.CREATE_KV_CACHE, sizes):
        state = relax.op.call_pure_packed(
            abi.KV_CREATE,
            *(sizes[0], sizes[1], sizes[2], sizes[4]),
            relax.ShapeExpr(layout),
            relax.ShapeExpr(kinds),
            relax.prim_value(dtype_bits),
            relax.prim_value(int(spec.device_type)),
            tvm.ir.StringImm(package),
            ty_args=relax.AnyType(),
        )
        builder.emit_func_output(builder.emit(state))
    numbers = relax.Var("numbers", relax.TensorType((8,), "float32"))
    with builder.function(DOUBLE, [numbers]):
        builder.emit_func_output(builder.emit(relax.op.add(numbers, numbers)))
    target = spec.tvm_target()
    with target:
        module = relax.transform.LegalizeOps()(builder.get())
        if spec.is_gpu:
            module = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)
    return relax.build(module, target=target, system_lib=spec.is_gpu)


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


class NativeState:
    """A state made by a loaded `cpu` library, driven by the library's own functions."""

    def __init__(
        self, library: Any, *, total: int, chunk: int, max_sequences: int = 1, sliding: int = 0
    ) -> None:
        self.library, self.max_sequences = library, max_sequences
        machine = relax.VirtualMachine(library, tvm.cpu())
        sizes = (max_sequences, total, chunk, 16, sliding)
        shapes = [tvm.runtime.ShapeTuple([size]) for size in sizes]
        self.state = machine[abi.CREATE_KV_CACHE](*shapes)

    def __call__(self, function: str, *arguments: int | str | tvm.runtime.Tensor | None) -> Any:
        return self.library.get_function(function, query_imports=True)(self.state, *arguments)

    def add(self, sequence: int) -> int:
        """Return the slot of a sequence that is added."""
        return int(self(abi.KV_ADD_SEQUENCE, sequence))

    def begin(self, count: int, sequence: int = 0) -> None:
        self.begin_all([sequence], [count])

    def begin_all(self, sequences: Sequence[int], counts: Sequence[int]) -> None:
        shapes = [tvm.runtime.ShapeTuple(list(numbers)) for numbers in (sequences, counts)]
        self(abi.KV_BEGIN_FORWARD, *shapes)

    def forward(self, count: int, sequence: int = 0) -> None:
        self.begin(count, sequence)
        self(abi.KV_END_FORWARD)

    def pop(self, count: int, sequence: int = 0) -> None:
        self(abi.KV_POP_N, sequence, count)

    @property
    def length(self) -> int:
        return self.length_of(0)

    def length_of(self, sequence: int) -> int:
        return int(self(abi.KV_LENGTH, sequence))

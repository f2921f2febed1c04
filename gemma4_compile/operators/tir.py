"""Small words for writing loops with TVM's IR builder, in definitions and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from gemma4_compile.operators.types import Buffer, Expr, Index


class FunctionBuilder:
    """Collects one PrimFunc: ``with function() as build: ...`` and then ``build.result``."""

    result: tirx.PrimFunc

    def arg(self, name: str, shape: Sequence[Index], dtype: str) -> Buffer:
        """A buffer parameter, in call order."""
        return T.arg(name, T.Buffer(tuple(shape), dtype))

    def scalar_arg(self, name: str, dtype: str = "int64") -> Expr:
        """A scalar parameter; scalars come after all buffers."""
        return T.arg(name, tirx.Var(name, dtype))


@contextmanager
def function(scheduled: bool) -> Iterator[FunctionBuilder]:
    """Build a PrimFunc; `scheduled` marks it as final, so that no schedule rule touches it."""
    build = FunctionBuilder()
    with IRBuilder() as builder, T.prim_func(private=True, s_tir=True):
        attrs: dict[str, bool] = {"tirx.noalias": True}
        if scheduled:
            attrs["tirx.is_scheduled"] = True
        T.func_attr(attrs)
        yield build
    build.result = builder.get() if scheduled else _with_root_block(builder.get())


def _with_root_block(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """TVM's graph passes look for the root block of whatever is not scheduled yet."""
    if isinstance(func.body, SBlockRealize):
        return func
    root = SBlock([], [], [], "root", func.body)
    return func.with_body(SBlockRealize([], True, root))


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """Run the body if `condition` holds."""
    with T.If(condition), T.Then():
        yield


class LocalVar:
    """A mutable scalar in registers."""

    def __init__(self, dtype: str, initial: Expr | None = None) -> None:
        self._buffer = T.alloc_buffer((1,), dtype, scope="local")
        if initial is not None:
            self.set(initial)

    @property
    def value(self) -> Expr:
        """The current value."""
        return self._buffer[0]

    def set(self, value: Expr) -> None:
        """Overwrite the value."""
        T.buffer_store(self._buffer, value, [0])

    def add(self, value: Expr) -> None:
        """Add to the value."""
        self.set(self.value + value)


@dataclass(frozen=True)
class OneRow:
    """One row of an argument, read and written as an argument of its own."""

    rows: Buffer
    row: Index

    @property
    def shape(self) -> list[Index]:
        """Extent of each axis of the row."""
        return list(self.rows.shape)[1:]

    @property
    def dtype(self) -> str:
        """Type of one element."""
        return self.rows.dtype

    def __getitem__(self, indices: Index | tuple[Index, ...]) -> Expr:
        places = indices if isinstance(indices, tuple) else (indices,)
        return self.rows[(self.row, *places)]


def store(buffer: Buffer, value: Expr, *indices: Index) -> None:
    """``buffer[indices] = value``."""
    if isinstance(buffer, OneRow):
        store(buffer.rows, value, buffer.row, *indices)
    else:
        T.buffer_store(buffer, value, list(indices))


def bind(value: Index) -> Expr:
    """Evaluate an expression once and name the result."""
    return T.Bind(value)


def materialize(value: Expr, dtype: str = "int32") -> Expr:
    """A value that stays a variable in the kernel's text.

    TVM writes out a `bind` at every use, and finds no common expressions that have calls: a few
    such names, each used some times in the next, grow into kernels of 200 KB.
    """
    return LocalVar(dtype, value).value


def i32(value: Index) -> Expr:
    """`value` as an int32 expression."""
    return tirx.const(value, "int32") if isinstance(value, int) else value.astype("int32")

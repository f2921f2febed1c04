"""Small words for writing loops with TVM's IR builder, in definitions and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T


class FunctionBuilder:
    """Collects one PrimFunc: ``with function() as build: ...`` and then ``build.result``."""

    result: tirx.PrimFunc

    def arg(self, name: str, shape: Sequence[Any], dtype: str) -> Any:
        """A buffer parameter, in call order."""
        return T.arg(name, T.Buffer(tuple(shape), dtype))

    def scalar_arg(self, name: str, dtype: str = "int64") -> Any:
        """A scalar parameter; scalars come after all buffers."""
        return T.arg(name, tirx.Var(name, dtype))


@contextmanager
def function(scheduled: bool) -> Iterator[FunctionBuilder]:
    """Build a PrimFunc; `scheduled` marks it as final, so that no schedule rule touches it."""
    build = FunctionBuilder()
    with IRBuilder() as builder, T.prim_func(private=True, s_tir=True):
        attrs: dict[str, Any] = {"tirx.noalias": True}
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
def when(condition: Any) -> Iterator[None]:
    """Run the body if `condition` holds."""
    with T.If(condition), T.Then():
        yield


class LocalVar:
    """A mutable scalar in registers."""

    def __init__(self, dtype: str, initial: Any = None) -> None:
        self._buffer = T.alloc_buffer((1,), dtype, scope="local")
        if initial is not None:
            self.set(initial)

    @property
    def value(self) -> Any:
        """The current value."""
        return self._buffer[0]

    def set(self, value: Any) -> None:
        """Overwrite the value."""
        T.buffer_store(self._buffer, value, [0])

    def add(self, value: Any) -> None:
        """Add to the value."""
        self.set(self.value + value)


def store(buffer: Any, value: Any, *indices: Any) -> None:
    """``buffer[indices] = value``."""
    T.buffer_store(buffer, value, list(indices))


def bind(value: Any) -> Any:
    """Evaluate an expression once and name the result."""
    return T.Bind(value)


def materialize(value: Any, dtype: str = "int32") -> Any:
    """A value that stays a variable in the kernel's text.

    TVM writes out a `bind` at every use, and finds no common expressions that have calls: a few
    such names, each used some times in the next, grow into kernels of 200 KB.
    """
    return LocalVar(dtype, value).value


def i32(value: Any) -> Any:
    """`value` as an int32 expression."""
    return tirx.const(value, "int32") if isinstance(value, int) else value.astype("int32")

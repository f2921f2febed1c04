"""Declare kernel arguments that are only read and written by fours, or by twos, as vectors.

TVM's WGSL generator turns a vector access to an array of scalars into scalar accesses, and so
does its CUDA generator where a named index hides that it is a multiple of four. Shared and local
memory is rewritten by TVM itself for WGSL; the arguments of kernels are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir.transform import PassContext, module_pass

LANES = (4, 2)  # of the vectors that all device languages have
INDEX_TYPES = ("int32", "int64")


@dataclass
class _Argument:
    """A buffer over one of the kernel's pointers, and how it is accessed.

    Attributes
    ----------
    lanes : elements of every access; 1 where they are no vectors of one size
    """

    pointer: tirx.Var
    buffer: tirx.Buffer
    lanes: int | None = None

    def meet(self, lanes: int) -> None:
        """Take note of an access."""
        self.lanes = lanes if self.lanes in (None, lanes) else 1


class _Vector:
    """An argument as the vectors that it is accessed by."""

    def __init__(self, argument: _Argument, lanes: int) -> None:
        buffer, self.lanes = argument.buffer, lanes
        name = f"{buffer.dtype}x{lanes}"
        pointer_type = tvm.ir.PointerType(tvm.ir.PrimType(name), "global")
        self.pointer = tirx.Var(argument.pointer.name, pointer_type)
        shape = (tirx.floordiv(buffer.shape[0], lanes),)
        self.buffer = tirx.decl_buffer(shape, name, buffer.name)


@module_pass(opt_level=0, name="VectorizeBuffers")
class VectorizeBuffers:
    """Retype the pointers of every kernel of a device module.

    Before: ``w: handle("uint32"); w[ramp(4 * i, 1, 4)]``. After: ``w: handle("uint32x4"); w[i]``.
    An argument with any other access, or an index that is not provably a multiple of its vectors'
    size, stays as it is. Must run after SplitHostDevice, when indices are flat.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Replace the kernels."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result.update_func(var, _rewrite(func))
        return result


def _rewrite(func: tirx.PrimFunc) -> tirx.PrimFunc:
    found = _arguments(func)
    # Named values are not substituted here: what they stand for may not be in scope.
    analyzer = sym.Analyzer()
    changed = [
        (one, _Vector(one, one.lanes)) for one in found if one.lanes is not None and one.lanes > 1
    ]
    if not changed:
        return func
    by_buffer = {argument.buffer: vector for argument, vector in changed}
    by_pointer = {argument.pointer: vector.pointer for argument, vector in changed}

    def index(node: tvm.ir.TensorLoad | tirx.BufferStore, vector: _Vector) -> list[tvm.ir.Expr]:
        return [analyzer.simplify(tirx.floordiv(node.indices[0].base, vector.lanes))]

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        vector = by_buffer.get(node.source)
        return node if vector is None else tirx.BufferLoad(vector.buffer, index(node, vector))

    def write(node: tirx.BufferStore) -> tirx.BufferStore:
        vector = by_buffer.get(node.buffer)
        if vector is None:
            return node
        return tirx.BufferStore(vector.buffer, node.value, index(node, vector))

    def declare(node: tirx.DeclBuffer) -> tirx.DeclBuffer:
        vector = by_buffer.get(node.buffer)
        return node if vector is None else tirx.DeclBuffer(vector.buffer, data=vector.pointer)

    body = tvm_ffi.structural_map(
        func.body,
        [(tvm.ir.TensorLoad, load), (tirx.BufferStore, write), (tirx.DeclBuffer, declare)],
    )
    params = [by_pointer.get(param, param) for param in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _analyzer_of_names(func: tirx.PrimFunc) -> sym.Analyzer:
    """An analyzer that knows what named indices stand for.

    A loop that was unrolled names a value once an iteration; such names stay unknown.
    """
    values: dict[tirx.Var, list[tvm.ir.Expr]] = {}

    def bind(node: tirx.Bind) -> None:
        if str(node.var.ty) in INDEX_TYPES:
            values.setdefault(node.var, []).append(node.value)

    tvm_ffi.structural_walk(func.body, [(tirx.Bind, bind)], order="pre")
    analyzer = sym.Analyzer()
    for var, (value, *others) in values.items():
        if not others and _is_arithmetic(value):
            analyzer.bind(var, value)
    return analyzer


def _arguments(func: tirx.PrimFunc) -> list[_Argument]:
    """The buffers over the kernel's pointers; those with an access of another kind are marked."""
    pointers = set(func.params)
    found: dict[tirx.Buffer, _Argument] = {}
    analyzer = _analyzer_of_names(func)

    def declare(node: tirx.DeclBuffer) -> None:
        buffer = node.buffer
        if node.data in pointers and len(buffer.shape) == 1 and "x" not in buffer.dtype:
            found[buffer] = _Argument(node.data, buffer)

    def access(buffer: tirx.Buffer, node: tvm.ir.TensorLoad | tirx.BufferStore) -> None:
        argument = found.get(buffer)
        if argument is None:
            return
        (index,) = node.indices
        lanes = int(index.lanes) if isinstance(index, tirx.Ramp) and int(index.stride) == 1 else 1
        is_whole = lanes in LANES and analyzer.can_prove(tirx.floormod(index.base, lanes) == 0)
        argument.meet(lanes if is_whole else 1)

    entries = [
        (tirx.DeclBuffer, declare),
        (tvm.ir.TensorLoad, lambda node: access(node.source, node)),
        (tirx.BufferStore, lambda node: access(node.buffer, node)),
    ]
    tvm_ffi.structural_walk(func.body, entries, order="pre")
    return list(found.values())


def _is_arithmetic(value: tvm.ir.Expr) -> bool:
    """Return whether a value is the same wherever it is computed: without loads."""
    calls: list[tvm.ir.Expr] = []
    tvm_ffi.structural_walk(value, [((tvm.ir.TensorLoad, tvm.ir.Call), calls.append)])
    return not calls

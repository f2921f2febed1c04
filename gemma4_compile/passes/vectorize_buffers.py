"""Declare kernel arguments that are only read and written four elements at a time as vectors.

TVM's WGSL generator turns a vector access to an array of scalars into four scalar accesses, and so
does its CUDA generator where a named index hides that it is a multiple of four. Shared and local
memory is rewritten by TVM itself for WGSL; the arguments of kernels are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir.transform import PassContext, module_pass

LANES = 4  # the widest vector of all device languages
INDEX_TYPES = ("int32", "int64")


@dataclass
class _Argument:
    """A buffer over one of the kernel's pointers, and how it is accessed."""

    pointer: tirx.Var
    buffer: tirx.Buffer
    is_vector: bool = True
    new_pointer: tirx.Var = field(init=False)
    new_buffer: tirx.Buffer = field(init=False)

    def __post_init__(self) -> None:
        dtype, size = self.buffer.dtype, self.buffer.shape[0]
        name = f"{dtype}x{LANES}"
        self.new_pointer = tirx.Var(
            self.pointer.name, tvm.ir.PointerType(tvm.ir.PrimType(name), "global")
        )
        self.new_buffer = tirx.decl_buffer((tirx.floordiv(size, LANES),), name, self.buffer.name)


@module_pass(opt_level=0, name="VectorizeBuffers")
class VectorizeBuffers:
    """Retype the pointers of every kernel of a device module.

    Before: ``w: handle("uint32"); w[ramp(4 * i, 1, 4)]``. After: ``w: handle("uint32x4"); w[i]``.
    An argument with any other access, or an index that is not provably a multiple of 4, stays as
    it is. Must run after SplitHostDevice, when indices are flat.
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
    changed = [argument for argument in found if argument.is_vector]
    if not changed:
        return func
    by_buffer = {argument.buffer: argument for argument in changed}
    by_pointer = {argument.pointer: argument for argument in changed}

    def index(node: tvm.ir.TensorLoad | tirx.BufferStore) -> list[tvm.ir.Expr]:
        return [analyzer.simplify(tirx.floordiv(node.indices[0].base, LANES))]

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        argument = by_buffer.get(node.source)
        return node if argument is None else tirx.BufferLoad(argument.new_buffer, index(node))

    def write(node: tirx.BufferStore) -> tirx.BufferStore:
        argument = by_buffer.get(node.buffer)
        if argument is None:
            return node
        return tirx.BufferStore(argument.new_buffer, node.value, index(node))

    def declare(node: tirx.DeclBuffer) -> tirx.DeclBuffer:
        argument = by_buffer.get(node.buffer)
        return (
            node
            if argument is None
            else tirx.DeclBuffer(argument.new_buffer, data=argument.new_pointer)
        )

    body = tvm_ffi.structural_map(
        func.body,
        [(tvm.ir.TensorLoad, load), (tirx.BufferStore, write), (tirx.DeclBuffer, declare)],
    )
    params = [by_pointer[p].new_pointer if p in by_pointer else p for p in func.params]
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
        is_quad = isinstance(index, tirx.Ramp) and int(index.lanes) == LANES
        is_quad = is_quad and int(index.stride) == 1
        if not is_quad or not analyzer.can_prove(tirx.floormod(index.base, LANES) == 0):
            argument.is_vector = False

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

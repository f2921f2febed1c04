"""Read float16 arguments of kernels as 32-bit words, for devices without 16-bit floats.

Two halves lie in a word, the one at the even index in its lower bits. Integer operations make two
float32 of them on every device (`halves`); storage of float16 needs `shader-f16`.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir.transform import PassContext, module_pass

from gemma4_compile.errors import LoweringError
from gemma4_compile.targets.kernels.common.builtins import halves

HALF, WORD, FLOAT = "float16", "uint32", "float32"
PAIR = 2  # halves of a word


@module_pass(opt_level=0, name="HalvesAsWords")
class HalvesAsWords:
    """Retype the pointers to float16 of every kernel of a device module.

    Before: ``a: handle("float16"); float32(a[i])``. After: ``a: handle("uint32");
    halves(a[i >> 1] >> ((i & 1) << 4))[0]``; neighbours from an even index on are whole
    words. Halves that a thread keeps become float32. Must run after SplitHostDevice, when indices
    are flat: the host goes on to check that the tensors are of float16.

    Raises
    ------
    LoweringError
        If a kernel writes halves or computes with them.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Replace the kernels."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result.update_func(var, _Rewriter(func, var.name_hint).rewrite())
        return result


class _Rewriter:
    """One kernel: the words in place of its arguments of halves, the floats of its own memory."""

    def __init__(self, func: tirx.PrimFunc, name: str) -> None:
        self._func, self._name = func, name
        self._analyzer = sym.Analyzer()
        self._pointers: dict[tirx.Var, tirx.Var] = {}
        self._words: dict[tirx.Buffer, tirx.Buffer] = {}
        self._floats: dict[tirx.Buffer, tirx.Buffer] = {}
        self._names: dict[tirx.Var, tirx.Var] = {}

        def declare(node: tirx.DeclBuffer) -> None:
            if node.data in set(func.params) and node.buffer.dtype.startswith(HALF):
                self._add_argument(node.data, node.buffer)

        def allocate(node: tirx.AllocBuffer) -> None:
            buffer = node.buffer
            if buffer.dtype.startswith(HALF):
                wider = buffer.dtype.replace(HALF, FLOAT)
                self._floats[buffer] = tirx.decl_buffer(
                    buffer.shape, wider, buffer.name, scope=buffer.scope()
                )

        def bind(node: tirx.Bind) -> None:
            if str(node.var.ty).startswith(HALF):
                wider = tvm.ir.PrimType(str(node.var.ty).replace(HALF, FLOAT))
                self._names[node.var] = tirx.Var(node.var.name, wider)

        entries = [(tirx.DeclBuffer, declare), (tirx.AllocBuffer, allocate), (tirx.Bind, bind)]
        tvm_ffi.structural_walk(func.body, entries, order="pre")

    def _add_argument(self, pointer: tirx.Var, buffer: tirx.Buffer) -> None:
        words = tvm.ir.PointerType(tvm.ir.PrimType(WORD), "global")
        self._pointers[pointer] = tirx.Var(pointer.name, words)
        size = tirx.ceildiv(buffer.shape[0], PAIR)
        self._words[buffer] = tirx.decl_buffer((size,), WORD, buffer.name)

    def rewrite(self) -> tirx.PrimFunc:
        """The kernel without halves; itself where it has none."""
        if not self._words and not self._floats:
            return self._func
        body = tvm_ffi.structural_map(
            self._func.body,
            [
                (tvm.ir.TensorLoad, self._load),
                (tirx.Cast, _cast),
                (tirx.Var, lambda node: self._names.get(node, node)),
                (tirx.Bind, self._bind),
                (tirx.Shuffle, lambda node: tirx.Shuffle(node.vectors, node.indices)),
                (tirx.BufferStore, self._store),
                (tirx.DeclBuffer, self._declare),
                (tirx.AllocBuffer, self._allocate),
            ],
        )
        self._check(body)
        params = [self._pointers.get(param, param) for param in self._func.params]
        return tirx.PrimFunc(params, body, self._func.ret_type, self._func.attrs)

    def _load(self, node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        if node.source in self._words:
            return _floats(self._words[node.source], node.indices[0], self._analyzer)
        wider = self._floats.get(node.source)
        return node if wider is None else tirx.BufferLoad(wider, node.indices)

    def _store(self, node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer in self._words:
            raise self._unknown(f"halves are written to `{node.buffer.name}`")
        wider = self._floats.get(node.buffer)
        return node if wider is None else tirx.BufferStore(wider, node.value, node.indices)

    def _declare(self, node: tirx.DeclBuffer) -> tirx.DeclBuffer:
        words = self._words.get(node.buffer)
        return node if words is None else tirx.DeclBuffer(words, data=self._pointers[node.data])

    def _allocate(self, node: tirx.AllocBuffer) -> tirx.AllocBuffer:
        wider = self._floats.get(node.buffer)
        return node if wider is None else tirx.AllocBuffer(wider, node.annotations)

    def _bind(self, node: tirx.Bind) -> tirx.Bind:
        name = self._names.get(node.var, node.var)
        if str(name.ty) != str(node.value.ty):
            raise self._unknown(f"`{name.name}` is computed in float16")
        return node if name is node.var else tirx.Bind(name, node.value)

    def _check(self, body: tirx.Stmt) -> None:
        def visit(node: tvm.ir.Expr) -> None:
            if str(node.ty).startswith(HALF):
                raise self._unknown(f"`{node}` is computed in float16")

        tvm_ffi.structural_walk(body, [(tvm.ir.Expr, visit)], order="pre")

    def _unknown(self, what: str) -> LoweringError:
        return LoweringError(
            f"kernel `{self._name}` cannot read float16 as words: {what}",
            hint="compile a library that computes in float16",
        )


def _cast(node: tirx.Cast) -> tvm.ir.Expr:
    """A cast of what was a half to what it is now is none."""
    return node.value if str(node.value.ty) == str(node.ty) else node


def _floats(words: tirx.Buffer, index: tvm.ir.Expr, analyzer: sym.Analyzer) -> tvm.ir.Expr:
    """The half at an index, or the neighbours at a ramp of indices, as float32."""
    if not isinstance(index, tirx.Ramp):
        return _float(words, index, analyzer)
    lanes, base = int(index.lanes), index.base
    is_words = lanes % PAIR == 0 and int(index.stride) == 1
    if is_words and analyzer.can_prove(tirx.floormod(base, PAIR) == 0):
        first = analyzer.simplify(tirx.floordiv(base, PAIR))
        pairs = [halves(tirx.BufferLoad(words, [first + k])) for k in range(lanes // PAIR)]
        return pairs[0] if lanes == PAIR else _vector(lanes, pairs)
    places = (base + lane * index.stride for lane in range(lanes))
    return _vector(lanes, [_float(words, place, analyzer) for place in places])


def _float(words: tirx.Buffer, index: tvm.ir.Expr, analyzer: sym.Analyzer) -> tvm.ir.Expr:
    word = tirx.BufferLoad(words, [analyzer.simplify(tirx.floordiv(index, PAIR))])
    odd = analyzer.simplify(tirx.floormod(index, PAIR))
    if isinstance(odd, tirx.IntImm):
        return tirx.Shuffle([halves(word)], [int(odd)])
    bits = tirx.shift_left(tirx.Cast(WORD, odd), tirx.const(4, WORD))
    return tirx.Shuffle([halves(tirx.shift_right(word, bits))], [0])


def _vector(lanes: int, parts: list[tvm.ir.Expr]) -> tvm.ir.Expr:
    return tirx.call_pure_extern(f"{FLOAT}x{lanes}", f"vec{lanes}", *parts)

"""Short kernels: names that nothing uses are dropped, and what occurs twice gets a name.

TVM's last passes inline all names, keep them, and search for common expressions before they do.
"""

from __future__ import annotations

from collections import Counter

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext, module_pass

MANY = 2**31 - 1  # elements of an argument; its real size is of no use to the device
READS_STATE = 2  # TVM's CallEffectKind: what is not above it may be left out


@module_pass(opt_level=0, name="DropUnusedNames")
class DropUnusedNames:
    """Before: ``a = i * 4; b = a + 1; y[i * 4] = 0``. After: ``y[i * 4] = 0``.

    A name whose value has an effect stays.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Rewrite the kernels."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result.update_func(var, _without_unused(func))
        return result


@module_pass(opt_level=0, name="NameCommonExpressions")
class NameCommonExpressions:
    """TVM's search for common expressions, kept out of where it goes wrong.

    The size of the grid is read from a kernel by who launches it, so it may use the kernel's
    arguments only. The sizes of arguments mean nothing to the device, and would be named where
    their names are unknown.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Rewrite the kernels."""
        sizeless = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                sizeless.update_func(var, _without_sizes(func))
        result = tirx.transform.CommonSubexprElim()(sizeless)
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and _names_extents(result[var]):
                result.update_func(var, func)
        return result


def _without_sizes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with arguments of constant sizes."""
    changed: dict[tirx.Buffer, tirx.Buffer] = {}

    def declare(node: tirx.DeclBuffer) -> tirx.DeclBuffer:
        buffer = node.buffer
        if all(isinstance(size, tirx.IntImm) for size in buffer.shape):
            return node
        changed[buffer] = tirx.decl_buffer((MANY,), buffer.dtype, buffer.name)
        return tirx.DeclBuffer(changed[buffer], data=node.data)

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        new = changed.get(node.source)
        return node if new is None else tirx.BufferLoad(new, node.indices)

    def write(node: tirx.BufferStore) -> tirx.BufferStore:
        new = changed.get(node.buffer)
        return node if new is None else tirx.BufferStore(new, node.value, node.indices)

    body = tvm_ffi.structural_map(func.body, [(tirx.DeclBuffer, declare)])
    entries = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, write)]
    return func.with_body(tvm_ffi.structural_map(body, entries)) if changed else func


def _names_extents(func: tirx.PrimFunc) -> bool:
    """Return whether an extent of the grid uses a name of the kernel's body."""
    extents: list[tvm.ir.Expr] = []

    def visit(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            extents.append(node.value)

    tvm_ffi.structural_walk(func.body, [(tirx.AttrStmt, visit)])
    used = {var for extent in extents for var in _variables(extent)}
    return not used <= set(func.params)


def _without_unused(func: tirx.PrimFunc) -> tirx.PrimFunc:
    bindings: list[tirx.Bind] = []
    tvm_ffi.structural_walk(func.body, [(tirx.Bind, bindings.append)])
    seen = _variables(func.body)  # a name is seen once where it is bound
    values = {node.var: node.value for node in bindings}
    waiting = [var for var in values if seen[var] == 1]
    unused = set()
    while waiting:
        var = waiting.pop()
        if _has_effect(values[var]):
            continue
        unused.add(var)
        for inner, count in _variables(values[var]).items():
            seen[inner] -= count
            if seen[inner] == 1 and inner in values:
                waiting.append(inner)
    if not unused:
        return func
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    body = tvm_ffi.structural_map(
        func.body, [(tirx.Bind, lambda node: nothing if node.var in unused else node)]
    )
    return func.with_body(body)


def _variables(node: tvm.ir.Expr | tirx.Stmt) -> Counter[tirx.Var]:
    """Return how often each variable occurs in a statement or expression."""
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(node, [(tirx.Var, found.append)])
    return Counter(found)


def _has_effect(value: tvm.ir.Expr) -> bool:
    calls: list[tvm.ir.Call] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.Call, calls.append)])
    return any(
        not isinstance(call.op, tvm.ir.Op) or call.op.get_attr("TCallEffectKind") > READS_STATE
        for call in calls
    )

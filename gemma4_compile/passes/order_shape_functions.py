"""Give the functions that compute symbolic shapes one order of statements, so builds are equal.

TVM writes them in the order of a hash table keyed by addresses, so it differs from run to run: and
with it which of them are the same function to TVM, and their numbers.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar
from tvm.ir.transform import PassContext, module_pass

PREFIX = "shape_func"  # TVM's name for what VMShapeLower makes, before a number but for the first


@module_pass(opt_level=0, name="OrderShapeFunctions")
class OrderShapeFunctions:
    """Sort the stores of every shape function by the slot that they write, and merge equal ones.

    Before: ``H[3] = 4 * H[0]; H[1] = 2 * H[0]``. After: ``H[1] = 2 * H[0]; H[3] = 4 * H[0]``.
    Must run after VMShapeLower. A function whose stores read what others of them write stays
    as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Replace the bodies, and the calls of functions that are merged or numbered anew."""
        functions = [
            (var, func.with_body(_ordered(func.body)))
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and var.name_hint.startswith(PREFIX)
        ]
        kept: list[tuple[GlobalVar, tirx.PrimFunc]] = []
        new_vars: dict[GlobalVar, GlobalVar] = {}
        for var, func in sorted(functions, key=lambda item: _number(item[0])):
            equal = [one for one, other in kept if tvm_ffi.structural_equal(func, other)]
            if not equal:
                kept.append((_numbered(var, len(kept)), func))
            new_vars[var] = equal[0] if equal else kept[-1][0]

        def new_var(var: GlobalVar) -> GlobalVar:
            return new_vars.get(var, var)

        result = mod.clone()
        moved = [old for old, new in new_vars.items() if not old.same_as(new)]
        for var in moved:
            del result[var]
        for var, func in kept:
            result[var] = func
        if moved:
            for var, func in mod.functions_items():
                if isinstance(func, relax.Function):
                    result.update_func(var, tvm_ffi.structural_map(func, [(GlobalVar, new_var)]))
        return result


def _number(var: GlobalVar) -> int:
    return int(var.name_hint.removeprefix(PREFIX) or 0)


def _numbered(var: GlobalVar, number: int) -> GlobalVar:
    """The variable with another number."""
    if _number(var) == number:
        return var
    renamed = GlobalVar(f"{PREFIX}{number or ''}")
    relax.expr._update_type(renamed, var.ty)
    return renamed


def _slot(store: tirx.BufferStore) -> int:
    return int(store.indices[0])


def _ordered(body: tirx.Stmt) -> tirx.Stmt:
    if not isinstance(body, tirx.SeqStmt):
        return body
    stores = list(body.seq)
    if not all(isinstance(store, tirx.BufferStore) for store in stores):
        return body
    written = {_slot(store) for store in stores}
    read: set[int] = set()

    def visit(load: tvm.ir.TensorLoad) -> None:
        read.add(int(load.indices[0]))

    for store in stores:
        tvm_ffi.structural_walk(store.value, [(tvm.ir.TensorLoad, visit)], order="post")
    return body if read & written else tirx.SeqStmt(sorted(stores, key=_slot))

"""Give the functions that compute symbolic shapes one order of statements, so builds are equal.

TVM writes them in the order of a hash table keyed by addresses, so it differs from run to run.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext, module_pass

PREFIX = "shape_func"  # TVM's name for what VMShapeLower makes


@module_pass(opt_level=0, name="OrderShapeFunctions")
class OrderShapeFunctions:
    """Sort the stores of every shape function by the slot that they write.

    Before: ``H[3] = 4 * H[0]; H[1] = 2 * H[0]``. After: ``H[1] = 2 * H[0]; H[3] = 4 * H[0]``.
    Must run after VMShapeLower. A function whose stores read what others of them write stays
    as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Replace the bodies."""
        ordered = {
            var: func.with_body(_ordered(func.body))
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and var.name_hint.startswith(PREFIX)
        }
        mod = mod.clone()
        for var, func in ordered.items():
            mod.update_func(var, func)
        return mod


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

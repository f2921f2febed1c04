"""Say in Metal what kernels say with exchanges between threads."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext, module_pass

from gemma4_compile.targets.kernels.common import builtins

METAL_EXCHANGE, METAL_SMALLEST, METAL_NEAREST = "simd_shuffle_xor", "simd_min", "rint"
SUM, LARGEST = "simd_sum", "simd_max"
SIMDGROUP = 32
_REDUCTIONS = {tirx.Add: SUM, tirx.Max: LARGEST}
_DOWN, _TO_ALL, _EXTERN, _PURE_EXTERN = (
    tvm.ir.Op.get(f"tirx.{name}")
    for name in ("tvm_warp_shuffle_down", "tvm_warp_shuffle", "call_extern", "call_pure_extern")
)


@module_pass(opt_level=0, name="LowerMetalIntrinsics")
class LowerMetalIntrinsics:
    """One function of Metal where five exchanges combine the values of 32 threads.

    Before, for 16, 8, 4, 2 and 1 in turn: ``v = v + simd_shuffle_down(v, 16)``, whose result the
    first thread has; maybe ``v = simd_shuffle(v, 0)`` after it. After: ``v = simd_sum(v)``, whose
    result all have; its order of sums is the device's. Maxima by ``simd_max``. Both are of MSL 2.1.

    Before: ``subgroupShuffleXor(x, bit)``. After: ``simd_shuffle_xor(x, bit)``; and
    ``subgroupMin(x)`` as ``simd_min(x)``.

    Before: ``round(x)``, which takes the even of two in WGSL and the one farther from 0 in Metal.
    After: ``rint(x)``, which takes the even one.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Rewrite the kernels."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                entries = [(tirx.SeqStmt, _sequence), (tvm.ir.Call, _call)]
                result.update_func(var, func.with_body(tvm_ffi.structural_map(func.body, entries)))
        return result


def _sequence(node: tirx.SeqStmt) -> tirx.Stmt:
    """The statements with each chain of exchanges as one of them."""
    rest = list(node.seq)
    kept: list[tirx.Stmt] = []
    reduced: list[tirx.BufferStore] = []  # what all threads have, as nothing has changed it since
    while rest:
        first, length = rest[0], _chain(rest)
        if length:
            value = tirx.call_extern("float32", _REDUCTIONS[type(first.value)], first.value.a)
            kept.append(tirx.BufferStore(first.buffer, value, first.indices))
            reduced.append(first)
        elif not any(_is_first_of_all(first, other) for other in reduced):
            kept.append(first)
            if isinstance(first, tirx.BufferStore):
                reduced = [one for one in reduced if not one.buffer.same_as(first.buffer)]
            else:
                reduced = []
        rest = rest[length or 1 :]
    return node if len(kept) == len(node.seq) else tirx.SeqStmt(kept)


def _chain(statements: Sequence[tirx.Stmt]) -> int:
    """How many statements from the first on are a whole simdgroup's reduction; 0 if none are."""
    first, distances = statements[0], [SIMDGROUP >> i for i in range(1, SIMDGROUP.bit_length())]
    kind = type(getattr(first, "value", None))
    steps = statements[: len(distances)]
    is_whole = len(steps) == len(distances) and all(
        type(getattr(step, "value", None)) is kind and _is_step(step, first, distance)
        for step, distance in zip(steps, distances, strict=True)
    )
    return len(distances) if is_whole else 0


def _is_step(node: tirx.Stmt, first: tirx.Stmt, distance: int) -> bool:
    """Return whether it is ``v = v + shuffle_down(v, distance)``, of the first statement's v."""
    if not _stores_the_same(node, first) or type(node.value) not in _REDUCTIONS:
        return False
    own, other = node.value.a, node.value.b
    if not _is_of(own, node) or not isinstance(other, tvm.ir.Call) or other.op != _DOWN:
        return False
    _, value, down, width, _ = other.args
    is_whole = int(width) == SIMDGROUP and int(down) == distance
    return is_whole and _is_of(value, node) and str(value.ty) == "float32"


def _is_first_of_all(node: tirx.Stmt, first: tirx.Stmt) -> bool:
    """Return whether it is ``v = shuffle(v, 0)``."""
    if not _stores_the_same(node, first):
        return False
    value = node.value
    if not isinstance(value, tvm.ir.Call) or value.op != _TO_ALL:
        return False
    return _is_of(value.args[1], node) and int(value.args[2]) == 0


def _stores_the_same(node: tirx.Stmt, first: tirx.Stmt) -> bool:
    if not isinstance(node, tirx.BufferStore) or not isinstance(first, tirx.BufferStore):
        return False
    return node.buffer.same_as(first.buffer) and _equal(node.indices, first.indices)


def _is_of(value: tvm.ir.Expr, store: tirx.BufferStore) -> bool:
    """Return whether a value is what stood where a statement stores."""
    if not isinstance(value, tvm.ir.TensorLoad):
        return False
    return value.source.same_as(store.buffer) and _equal(value.indices, store.indices)


def _equal(one: Sequence[tvm.ir.Expr], other: Sequence[tvm.ir.Expr]) -> bool:
    return bool(tvm_ffi.structural_equal(list(one), list(other)))


def _call(node: tvm.ir.Call) -> tvm.ir.Expr:
    if node.op not in (_EXTERN, _PURE_EXTERN):
        return node
    match str(getattr(node.args[0], "value", "")):
        case builtins.NEAREST:
            return tirx.call_pure_extern("float32", METAL_NEAREST, node.args[1])
        case builtins.EXCHANGE:
            _, value, bit = node.args
            return tirx.call_extern("float32", METAL_EXCHANGE, value, bit.astype("uint16"))
        case builtins.SMALLEST:
            return tirx.call_extern("float32", METAL_SMALLEST, node.args[1])
    return node

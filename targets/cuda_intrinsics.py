"""Say in CUDA what kernels say with built-in functions of WGSL."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.transform import PassContext, module_pass

from gemma4_compile.targets import cuda_counts, cuda_tensor_cores, cuda_warpgroups
from gemma4_compile.targets.kernels.common.builtins import DOT4, EXCHANGE, NEAREST

CUDA_DOT4 = "__dp4a"
CUDA_EXCHANGE, CUDA_NEAREST = "__shfl_xor_sync", "rintf"
SOURCES = {**cuda_tensor_cores.SOURCES, **cuda_warpgroups.SOURCES, **cuda_counts.SOURCES}
EXTERN_CALLS = [tvm.ir.Op.get(f"tirx.call_{kind}extern") for kind in ("", "pure_")]


@module_pass(opt_level=0, name="LowerCudaIntrinsics")
class LowerCudaIntrinsics:
    """Products of four bytes, with the addition that CUDA's instruction does besides; more words.

    Before: ``t + dot4I8Packed(a, b)``. After: ``__dp4a(int32(a), int32(b), t)``. Without an
    addition t is 0. A vector of products takes in the lanes of a vector that is added to it. Must
    run when names are inlined, or the addition may be out of sight.

    Before: ``select(condition, quad, other)``. After: ``condition ? quad : other``, which computes
    one of them: TVM's generator for CUDA cannot select vectors by one condition.

    Before: ``subgroupShuffleXor(x, bit)``. After: ``__shfl_xor_sync(__activemask(), x, bit)``, with
    the mask that TVM's own exchanges have: a block may hold less than a warp.

    Before: ``round(x)``, which takes the even of two in WGSL. After: ``rintf(x)``, which does, too.

    Before: a call of targets/kernels/tiles/tensor_cores.py. After: the same, with its text.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Rewrite the kernels."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                entries = [(tvm.ir.Call, _call), (tirx.Add, _sum), (tirx.Select, _choice)]
                result.update_func(var, func.with_body(tvm_ffi.structural_map(func.body, entries)))
        return result


def _is_call(node: tvm.ir.Expr, name: str, kind: str = "call_pure_extern") -> bool:
    if not isinstance(node, tvm.ir.Call) or node.op != tvm.ir.Op.get(f"tirx.{kind}"):
        return False
    return str(getattr(node.args[0], "value", "")) == name


def _dp4a(a: tvm.ir.Expr, b: tvm.ir.Expr, total: tvm.ir.Expr) -> tvm.ir.Call:
    return tirx.call_pure_extern("int32", CUDA_DOT4, a, b, total)


def _call(node: tvm.ir.Call) -> tvm.ir.Call:
    if (text := _tensor_core_text(node)) is not None:
        name, *args = node.args
        return cuda_func_call(name.value, *args, source_code=text, return_type=node.ty)
    if _is_call(node, NEAREST):
        return tirx.call_pure_extern("float32", CUDA_NEAREST, node.args[1])
    if not _is_call(node, EXCHANGE, "call_extern"):
        return _product(node)
    _, value, bit = node.args
    mask = tirx.call_extern("uint32", "__activemask")
    return tirx.call_extern("float32", CUDA_EXCHANGE, mask, value, bit.astype("int32"))


def _tensor_core_text(node: tvm.ir.Call) -> str | None:
    """The text of a function that the node calls, if it is one of tensor cores."""
    if node.op not in EXTERN_CALLS:
        return None
    return SOURCES.get(str(getattr(node.args[0], "value", "")))


def _product(node: tvm.ir.Call) -> tvm.ir.Call:
    if not _is_call(node, DOT4):
        return node
    _, a, b = node.args
    return _dp4a(a.astype("int32"), b.astype("int32"), tirx.const(0, "int32"))


def _sum(node: tirx.Add) -> tvm.ir.Expr:
    for product, other in ((node.a, node.b), (node.b, node.a)):
        if _is_bare_product(product):
            return _dp4a(product.args[1], product.args[2], other)
        if _is_vector_of_products(product):
            lanes = [
                _dp4a(lane.args[1], lane.args[2], tirx.Shuffle([other], [index]))
                for index, lane in enumerate(product.vectors)
            ]
            return tirx.Shuffle(lanes, product.indices)
    return node


def _is_bare_product(node: tvm.ir.Expr) -> bool:
    """Return whether it is a product to which nothing is added yet."""
    return _is_call(node, CUDA_DOT4) and _is_zero(node.args[3])


def _is_vector_of_products(node: tvm.ir.Expr) -> bool:
    """Return whether it joins products, the first one first."""
    if not isinstance(node, tirx.Shuffle) or not all(map(_is_bare_product, node.vectors)):
        return False
    return [int(index) for index in node.indices] == list(range(len(node.vectors)))


def _choice(node: tirx.Select) -> tvm.ir.Expr:
    is_vector = int(tvm.DataType(str(node.true_value.ty)).lanes) > 1
    if not is_vector:
        return node
    return tirx.if_then_else(node.condition, node.true_value, node.false_value)


def _is_zero(value: tvm.ir.Expr) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == 0

"""Write float16 multiply-adds of WebGPU's kernels as a product and a sum."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext, module_pass


@module_pass(opt_level=0, name="SplitHalfProducts")
class SplitHalfProducts:
    """Undo TVM's contraction for vectors of float16.

    NVIDIA's driver takes WGSL's `fma` of such a vector one value at a time, at half the rate of the
    packed instruction that it makes of a product and a sum (benchmarks: 66 and 132 TFLOP/s).

    Before: ``fma(a, b, c)``, float16x4. After: ``a * b + c``. Must run after LowerIntrin.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Rewrite the kernels."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                body = tvm_ffi.structural_map(func.body, [(tvm.ir.Call, _split)])
                result.update_func(var, func.with_body(body))
        return result


def _split(node: tvm.ir.Call) -> tvm.ir.Expr:
    if not _is_half_vector(node) or not _is_fma(node):
        return node
    a, b, c = node.args[-3:]
    return a * b + c


def _is_fma(node: tvm.ir.Call) -> bool:
    return str(getattr(node.args[0], "value", "")) == "fma" if len(node.args) == 4 else False


def _is_half_vector(node: tvm.ir.Call) -> bool:
    return str(node.ty).startswith("float16x")

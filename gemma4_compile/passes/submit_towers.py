"""Have launches submitted a layer or some at a time, where the client gathers them.

Systems reset a GPU that is busy with one submission for seconds, as a slow one is with a tower, or
with several long texts of an encoder.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext, module_pass

from gemma4_compile import abi

LAUNCHES = 12  # about those of a layer; a submission costs a browser a tenth of a millisecond
ENCODER_LAUNCHES = 4 * LAUNCHES  # most texts are short
TOWERS = (abi.EMBED_IMAGE, abi.EMBED_AUDIO, abi.IMAGE_ADAPTER, abi.AUDIO_ADAPTER)


@module_pass(opt_level=0, name="SubmitTowers")
class SubmitTowers:
    """Call `gemma4_submit` (targets/native/submit.cc) after some launches of a tower or an encoder.

    Before: ``k0(x, y); ...; k11(y, z); k12(z, w)``. After: ``...; k11(y, z); gemma4_submit(z);
    k12(z, w)``. Must run after memory is planned, which must not see another reader.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Replace the bodies of their functions."""
        kernels = {
            var.name_hint for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)
        }
        result = mod.clone()
        for var, func in mod.functions_items():
            if not isinstance(func, relax.Function):
                continue
            if var.name_hint in TOWERS:
                result.update_func(var, _submitting(func, kernels, LAUNCHES))
            elif var.name_hint == abi.EMBED_TEXTS:
                result.update_func(var, _submitting(func, kernels, ENCODER_LAUNCHES))
        return result


def _submitting(func: relax.Function, kernels: set[str], most: int) -> relax.Function:
    builder, launches = relax.BlockBuilder(), 0
    blocks = []
    for block in func.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            bindings.append(binding)
            launched = _launched(binding, kernels)
            if launched is None:
                continue
            launches += 1
            if launches % most == 0:
                nothing = relax.TupleType([])
                call = relax.Call(relax.ExternFunc(abi.SUBMIT), [launched], ty_args=[nothing])
                bindings.append(relax.VarBinding(relax.Var("_", nothing), builder.normalize(call)))
        blocks.append(relax.BindingBlock(bindings))
    body = builder.normalize(relax.SeqExpr(blocks, func.body.body))
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _launched(binding: relax.Binding, kernels: set[str]) -> relax.Expr | None:
    """The tensor that a launch writes, its last one; None for what is no launch."""
    call = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.GlobalVar):
        return None
    if call.op.name_hint not in kernels:
        return None
    tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    return tensors[-1] if tensors else None

"""Check tensors where they come into a library, and not again at every launch of a kernel.

TVM has the function that launches a kernel check every argument, for anybody might call it: shape,
type, device, strides. For some forty kernels of a library that is most of the host's code, half of
what LLVM does, and work at each launch. But its callers are this library's own functions, and what
they pass is known: what they allocate has the type that the graph has for it. All else comes from
outside, as an argument, as one of the weights, or from a packed function such as those of the KV
state: that is checked as it comes in (`targets/native/check_tensors.cc`), as far as TVM's own
checks of a function's arguments do not see it. They ask neither for the device nor for strides, and
of a list of weights for its length alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.transform import Pass, PassContext, module_pass

from gemma4_compile import abi
from gemma4_compile.operators.examples import rows_of_table

ITSELF, ANY = -1, -1  # see `check_tensors.cc`: a tensor that is in no list, an extent that may vary
_TYPE_CODE = 256
_OF_MACHINE = "vm.builtin."
"""Functions of the virtual machine: what they return is made of what they are given."""


def skip_asserts() -> Pass:
    """For the functions that launch kernels: CheckTensors has seen to their arguments."""
    return tirx.transform.SkipAssert()


@module_pass(opt_level=0, name="CheckTensors")
class CheckTensors:
    """Call `gemma4_check_tensors` for each tensor from outside that a function reads.

    Before: ``def decode(x, weights): w = weights[3]; kernel(x, w, y)``. After:
    ``check("decode: x", ...); check("decode: weights", ...); w = weights[3]; kernel(x, w, y)``.
    Must run after memory is planned, which must not see another reader, and before constants are
    lowered.

    Attributes
    ----------
    device_type : of the tensors, by DLPack's number
    """

    def __init__(self, device_type: int) -> None:
        self.device_type = device_type

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Replace the bodies of the graph's functions."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result.update_func(var, self._checking(var.name_hint, func))
        return result

    def _checking(self, name: str, func: relax.Function) -> relax.Function:
        builder = relax.BlockBuilder()

        def check(what: str, value: relax.Expr, layout: Sequence[int]) -> relax.Binding:
            nothing = relax.TupleType([])
            arguments = [
                tvm.ir.StringImm(f"{name}: {what}"),
                relax.prim_value(self.device_type),
                value,
                relax.ShapeExpr(layout),
            ]
            call = relax.Call(relax.ExternFunc(abi.CHECK_TENSORS), arguments, ty_args=[nothing])
            return relax.VarBinding(relax.Var("_", nothing), builder.normalize(call))

        read = _read(func)
        first = [
            check(param.name, param, layout)
            for param in func.params
            if (layout := _layout_of(param, read))
        ]
        blocks = []
        for number, block in enumerate(func.body.blocks):
            bindings = [*first] if not number else []
            for binding in block.bindings:
                bindings.append(binding)
                made_by = _packed_function(binding)
                if made_by is not None:
                    bindings.append(check(made_by, binding.var, _layout(ITSELF, binding.var.ty)))
            blocks.append(relax.BindingBlock(bindings))
        body = builder.normalize(relax.SeqExpr(blocks, func.body.body))
        return _closed(relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs))


def _closed(func: relax.Function) -> relax.Function:
    """A function whose tables have all of their rows in its signature, as kernels ask tensors.

    TVM checks every weight of a list that has one open extent, at each call, before
    `check_tensors.cc` sees it: also those that are not read.
    """
    open_rows = {
        extent: tirx.IntImm("int64", whole)
        for param in func.params
        if isinstance(param.ty, relax.TupleType)
        for tensor in param.ty.fields
        for extent in tensor.shape or ()
        if (whole := rows_of_table(extent)) is not None
    }
    return func.bind_symbolic_vars(open_rows) if open_rows else func


_Read = dict[relax.Var, set[int]]
"""The variables that a function reads, with the items of those that are lists."""


def _read(func: relax.Function) -> _Read:
    read: _Read = {}

    def note(var: relax.Var) -> None:
        read.setdefault(var, set())

    def note_item(get: relax.TupleGetItem) -> None:
        read.setdefault(get.tuple_value, set()).add(get.index)

    entries = [(relax.Var, note), (relax.TupleGetItem, note_item)]
    tvm_ffi.structural_walk(func.body, entries, order="post")
    return read


def _layout_of(param: relax.Var, read: _Read) -> list[int]:
    """What `check_tensors.cc` is to find: nothing of what is not read, or is no tensor."""
    if param not in read:
        return []
    if isinstance(param.ty, relax.TensorType):
        return _layout(ITSELF, param.ty)
    if not isinstance(param.ty, relax.TupleType):
        return []
    fields = param.ty.fields
    return [number for item in sorted(read[param]) for number in _layout(item, fields[item])]


def _layout(item: int, tensor: relax.TensorType) -> list[int]:
    """A tensor's place, type and extents."""
    dtype = tvm_ffi.dtype(str(tensor.dtype))
    extents = [ANY] * tensor.ndim
    if tensor.shape is not None:
        extents = [
            int(extent) if isinstance(extent, tirx.IntImm) else ANY for extent in tensor.shape
        ]
    type_number = dtype.type_code * _TYPE_CODE + dtype.bits
    return [item, type_number, tensor.ndim, *extents]


def _packed_function(binding: relax.Binding) -> str | None:
    """The packed function from outside that has made a tensor, if one has."""
    call = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(call, relax.Call) or not isinstance(call.op, relax.ExternFunc):
        return None
    name = str(call.op.global_symbol)
    is_tensor = isinstance(binding.var.ty, relax.TensorType)
    return name if is_tensor and not name.startswith(_OF_MACHINE) else None

"""The exported functions of all components as one IRModule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax, tirx

from gemma4_compile.model_spec.component import Component, Exported, ExportOptions
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.matrices import Matrices

_PARAMETERS = "packed_params"  # the name that nn.Module.export_tvm gives the tuple


def export_module(
    config: Gemma4Config,
    matrices: Matrices,
    options: ExportOptions,
    components: Sequence[Component] = ALL_COMPONENTS,
) -> Exported:
    """Build the functions of every component that the config has.

    The client holds one list of parameters and gives all of it to each function, so all of them
    take the same tuple: the parameters of all components, in their order. Functions of components
    with a checkpoint of their own take a tuple of their own, which clients may do without; its
    parameters are the last ones.
    """
    present = [component for component in components if component.parameters(config)]
    shared = [one for one in present if not one.stem]
    parts = [component.export(config, matrices, options) for component in shared]
    own = [component.export(config, matrices, options) for component in present if component.stem]
    if len(parts) == 1 and not own:
        return parts[0]
    fields = [field for part in parts for field in _tuple_fields(part)]
    builder, functions, begin = relax.BlockBuilder(), {}, 0
    for part in (*parts, *own):
        moved = {
            var: builder.add_func(func, var.name_hint)
            for var, func in part.module.functions_items()
            if not isinstance(func, relax.Function)
        }
        for var, func in part.module.functions_items():
            if isinstance(func, relax.Function):
                is_own = any(part is one for one in own)
                of_tuple = (_tuple_fields(part), 0) if is_own else (fields, begin)
                functions[var] = _moved(func, moved, *of_tuple, builder)
        begin += len(part.parameters)
    result = builder.get()
    for var, func in functions.items():
        result[var] = func
    names = tuple(name for part in (*parts, *own) for name in part.parameters)
    return Exported(result, names)


def _packed(function: relax.Function) -> relax.Var | None:
    """The parameter tuple of a function, its last argument, if it has one."""
    last = function.params[-1] if len(function.params) else None
    return last if last is not None and last.name == _PARAMETERS else None


def _tuple_fields(part: Exported) -> list[relax.Type]:
    """Types of a component's parameters."""
    for _, func in part.module.functions_items():
        if isinstance(func, relax.Function) and (packed := _packed(func)) is not None:
            return list(packed.ty.fields)
    assert not part.parameters, "some function takes the parameters"
    return []


def _renewed(fields: Sequence[relax.Type]) -> list[relax.Type]:
    """The same types with sizes of their own: those that a function leaves open are its alone."""
    sizes: dict[tirx.Var, tirx.Var] = {}

    def own(size: tirx.Expr) -> tirx.Expr:
        if not isinstance(size, tirx.Var):
            return size
        return sizes.setdefault(size, tirx.Var(size.name, "int64"))

    return [relax.TensorType([own(size) for size in one.shape], one.dtype) for one in fields]


def _moved(
    function: relax.Function,
    moved: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar],
    fields: list[relax.Type],
    begin: int,
    builder: relax.BlockBuilder,
) -> relax.Function:
    """The function with calls of moved functions, on the tuple of all parameters.

    Its own parameters begin at an index of that tuple.
    """
    old = _packed(function)
    own = [] if old is None else list(old.ty.fields)
    fields = [*_renewed(fields[:begin]), *own, *_renewed(fields[begin + len(own) :])]
    new = relax.Var(_PARAMETERS, relax.TupleType(fields))

    def value_of(value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(old):
            return builder.normalize(relax.TupleGetItem(new, begin + value.index))
        if isinstance(value, relax.Call) and len(value.args) and value.args[0] in moved:
            args = [moved[value.args[0]], *value.args[1:]]
            return builder.normalize(relax.Call(value.op, args, value.attrs, value.ty_args))
        return value

    blocks = []
    for block in function.body.blocks:
        bindings = [
            relax.VarBinding(binding.var, value_of(binding.value))
            if isinstance(binding, relax.VarBinding)
            else binding
            for binding in block.bindings
        ]
        is_dataflow = isinstance(block, relax.DataflowBlock)
        blocks.append((relax.DataflowBlock if is_dataflow else relax.BindingBlock)(bindings))
    body = builder.normalize(relax.SeqExpr(blocks, function.body.body))
    params = function.params if old is None else [*function.params[:-1], new]
    return relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)

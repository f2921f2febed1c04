"""The exported functions of all components as one IRModule."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from gemma4_compile.model_spec.component import Component, Exported, ExportOptions
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.config import Gemma4Config

_PARAMETERS = "packed_params"  # the name that nn.Module.export_tvm gives the tuple


def export_module(
    config: Gemma4Config,
    matrices: Matrices,
    options: ExportOptions,
    components: Sequence[Component] = COMPONENTS,
) -> Exported:
    """Build the functions of every component that the config has.

    The client holds one list of parameters and gives all of it to each function, so all of them
    take the same tuple: the parameters of all components, in their order.
    """
    parts = [
        component.export(config, matrices, options)
        for component in components
        if component.parameters(config)
    ]
    if len(parts) == 1:
        return parts[0]
    fields = [field for part in parts for field in _tuple_fields(part)]
    result = tvm.IRModule()
    begin = 0
    for part in parts:
        functions = {}
        for var, func in part.module.functions_items():
            whole = isinstance(func, relax.Function) and _packed(func) is not None
            functions[var] = _with_all(func, fields, begin) if whole else func
        result.update(tvm.IRModule(functions))
        begin += len(part.parameters)
    return Exported(result, tuple(name for part in parts for name in part.parameters))


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


def _with_all(function: relax.Function, fields: list[relax.Type], begin: int) -> relax.Function:
    """The function on the tuple of all parameters, where its own begin at an index."""
    old, builder = _packed(function), relax.BlockBuilder()
    new = relax.Var(_PARAMETERS, relax.TupleType(fields))
    blocks = []
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(old):
                item = builder.normalize(relax.TupleGetItem(new, begin + value.index))
                binding = relax.VarBinding(binding.var, item)
            bindings.append(binding)
        is_dataflow = isinstance(block, relax.DataflowBlock)
        blocks.append((relax.DataflowBlock if is_dataflow else relax.BindingBlock)(bindings))
    body = builder.normalize(relax.SeqExpr(blocks, function.body.body))
    params = [*function.params[:-1], new]
    return relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)

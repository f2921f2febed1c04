"""Small modules of operator calls, for tests of passes: Before and Expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax
from tvm.relax.frontend import nn

from gemma4_compile.operators.base import Operator, TensorSpec, emit
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph, rewrite

Tensors = Mapping[str, nn.Tensor]
Pass = Callable[[OperatorGraph, FusionLimits], None]
F32 = "float32"


def module(
    inputs: Mapping[str, TensorSpec], body: Callable[[Tensors], Sequence[nn.Tensor]]
) -> tvm.IRModule:
    """A module whose function `main` has these inputs and returns what `body` makes of them."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(name, relax.TensorType(list(shape), dtype))
        for name, (shape, dtype) in inputs.items()
    ]
    with builder.function("main", params):
        with builder.dataflow():
            tensors = {param.name: nn.Tensor(_expr=param) for param in params}
            results = [tensor._expr for tensor in body(tensors)]
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get()


def call(operator: Operator, args: Sequence[nn.Tensor], *specs: TensorSpec) -> list[nn.Tensor]:
    """The results of one operator."""
    return list(emit(operator, args, list(specs)))


def weights(layout: WeightLayout) -> dict[str, tuple[tuple[int, ...], str]]:
    """Inputs for the tensors of a layout, by name."""
    return {name: (shape, dtype) for name, shape, dtype in layout.shapes()}


def rewritten(before: tvm.IRModule, limits: FusionLimits, *passes: Pass) -> tvm.IRModule:
    """The module after some passes; well formed."""

    def change(graph: OperatorGraph) -> None:
        for one in passes:
            one(graph, limits)

    after = rewrite(before, change)
    relax.analysis.well_formed(after)
    return after


def kinds(after: tvm.IRModule) -> list[str]:
    """Kinds of the operators that `main` calls, in order; built-in operators by their name."""
    graph = OperatorGraph(after, "main")
    return [
        step.operator.variant if isinstance(step, OperatorCall) else step.binding.value.op.name
        for step in graph.steps
        if isinstance(step, OperatorCall) or isinstance(step.binding.value, relax.Call)
    ]


def assert_same(after: tvm.IRModule, expected: tvm.IRModule) -> None:
    """Equal but for the names of variables."""
    tvm.ir.assert_structural_equal(after, expected, map_free_vars=True)

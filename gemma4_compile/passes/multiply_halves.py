"""Matmuls of a chunk, where the target multiplies matrices of float16.

Before and after::

    y = int8_linear(words, scales, weights)

with `HalvedInt8` after it: the same rows, whose products are those of operands rounded to float16.
Where rows are made float16 in a launch of their own, once for all tiles of W that read them::

    halves, powers = halve_rows(words, scales)
    y = int8_linear(halves, powers, weights)

Those on floats get `Halved` where their kernel multiplies by float16. Experts' matmuls are taken in
the same way, but make their rows float16 themselves. Only graphs that have float16 are taken: a
library without it must not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import relax

from gemma4_compile.operators.activations import (
    FLOATS,
    HALVED,
    HALVED_INT8,
    INT8,
    PACKED,
    SCALED_HALVES,
    Activations,
)
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.halved_rows import HalveRows, halved_specs
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.rows import Chunk
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import (
    AnyCall,
    OperatorCall,
    OperatorGraph,
    is_call_of,
    result_vars,
)


def multiply_halves(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Let a chunk's matmuls multiply float16."""
    forms: list[tuple[Activations, Activations, Callable[[WeightLayout], bool]]] = []
    if limits.takes_halves is not None:
        forms.append((INT8, HALVED_INT8, limits.takes_halves))
    if limits.takes_by_halves is not None:
        forms.append((FLOATS, HALVED, limits.takes_by_halves))
    if not forms or not _has_float16(graph):
        return
    made: dict[relax.Var, list[relax.Var]] = {}
    calls: list[OperatorCall[Linear | ExpertLinear]]
    calls = [*graph.calls(Linear), *graph.calls(ExpertLinear)]
    for call in calls:
        operator = call.operator
        for before, after, takes in forms:
            is_form = operator.activations == before
            is_read = (operator.in_dtype == PACKED) == (before == INT8)  # and not rounded here
            if not (is_form and is_read and isinstance(operator.rows, Chunk)):
                continue
            if isinstance(operator, ExpertLinear) and not limits.experts_in_halves:
                continue
            if not takes(operator.layout):
                continue
            if after == HALVED_INT8 and limits.halves_rows and is_call_of(call, Linear):
                _halve_rows(graph, call, made)
                continue
            halved = replace(operator, activations=after)
            graph.replace([call], [OperatorCall(halved, call.args, call.results)])


def _halve_rows(
    graph: OperatorGraph,
    call: OperatorCall[Linear],
    made: dict[relax.Var, list[relax.Var]],
) -> None:
    """Let a matmul read its rows as float16; `made` has those of other matmuls, by their words."""
    operator, (words, scales, *others) = call.operator, call.args
    assert isinstance(words, relax.Var), "the result of what rounds the rows"
    before: list[AnyCall] = []
    if words not in made:
        made[words] = result_vars("halved", halved_specs(operator.cols, words.ty.shape[0]))
        halve = HalveRows(operator.rows, operator.cols, operator.interleaved)
        before.append(OperatorCall(halve, [words, scales], made[words]))
    halved = replace(operator, activations=SCALED_HALVES)
    graph.replace([call], [*before, OperatorCall(halved, [*made[words], *others], call.results)])


def _has_float16(graph: OperatorGraph) -> bool:
    """Return whether a call has a tensor of float16 among its arguments."""
    tensors = (arg.ty for step in graph.steps for arg in getattr(step, "args", ()))
    return any(isinstance(ty, relax.TensorType) and ty.dtype == "float16" for ty in tensors)

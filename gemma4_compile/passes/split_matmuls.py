"""Matmuls and lookups whose row splits are more buffers than a kernel may bind, in several calls.

Before::

    y = linear(x, weights 0 to 7)

After, with 3 splits to a call::

    y0 = linear(x, weights 0 to 2)
    y1 = linear(x, weights 3 to 5)
    y2 = linear(x, weights 6 to 7)
    y = concat(y0, y1, y2)

Lookups and the experts' matmuls pass their result on instead: each call adds its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from tvm import relax

from gemma4_compile.operators.activations import PACKED, Output
from gemma4_compile.operators.drafting import CandidateLogits
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.rows import Few, One
from gemma4_compile.passes.fuse_norm_linear import matmuls
from gemma4_compile.passes.fusion_limits import FusionLimits, buffers
from gemma4_compile.passes.operator_graph import (
    AnyCall,
    OperatorCall,
    OperatorGraph,
    Other,
    Step,
    result_vars,
)

Chained: TypeAlias = "Embedding | CandidateLogits | ExpertLinear"
CHAINED: tuple[type[Chained], ...] = (Embedding, CandidateLogits, ExpertLinear)


def split_matmuls(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Divide calls that bind too many buffers among several."""
    if limits.max_buffers is None:
        return
    for linear in matmuls(graph):
        if not limits.binds(linear.args, len(linear.results)):
            graph.replace([linear], _side_by_side(linear, limits.max_buffers))
    for chained in CHAINED:
        for call in graph.calls(chained):
            if not limits.binds(call.args, len(call.results)):
                first = _before_weights(call.operator)
                graph.replace([call], _one_after_the_other(call, first, limits.max_buffers))


def split_calls(count: int, first: int, later: int) -> Iterator[range]:
    """Divide `count` splits among calls.

    At most `first` in the first call, `later` in each that follows.
    """
    begin, limit = 0, first
    while begin < count:
        yield range(begin, min(begin + limit, count))
        begin, limit = begin + limit, later


def _side_by_side(linear: OperatorCall[Linear], max_buffers: int) -> list[Step]:
    operator = linear.operator
    layout = operator.layout
    count = len(layout.split_rows)
    step = layout.tensors_per_split
    before = _vectors(operator)
    weights = linear.args[before : before + count * step]
    after = linear.args[before + count * step :]
    others = before + buffers(after) + len(linear.results)
    limit = (max_buffers - others) // step
    calls: list[AnyCall] = []
    begin = 0
    for splits in split_calls(count, limit, limit):
        rows = layout.split_rows[splits.start : splits.stop]
        end = begin + sum(rows)
        masked = tuple(row - begin for row in operator.suppressed if begin <= row < end)
        part = replace(
            operator,
            layout=replace(layout, split_rows=rows),
            suppressed=masked,
            output=_of_range(operator, begin, end),
        )
        args = [
            *linear.args[:before],
            *weights[splits.start * step : splits.stop * step],
            *after,
        ]
        specs = [
            (
                (result.ty.shape[0], int(result.ty.shape[1]) * sum(rows) // layout.rows),
                result.ty.dtype,
            )
            for result in linear.results
        ]
        calls.append(OperatorCall(part, args, result_vars("split", specs)))
        begin = end
    joined: list[Step] = [
        Other(_concat(result, [call.results[index] for call in calls]))
        for index, result in enumerate(linear.results)
    ]
    return [*calls, *joined]


def _of_range(operator: Linear, begin: int, end: int) -> Output:
    """The output of some rows of a weight; steps of other rows are steps of none."""
    stepped, first, parts = operator.stepped_out, 0, []
    if stepped is None or operator.is_paired:
        return operator.output
    for rows in stepped.sections:
        parts.append(max(0, min(end, first + rows) - max(begin, first)))
        first += rows
    return replace(stepped, sections=tuple(parts))


def _concat(result: relax.Var, tensors: Sequence[relax.Var]) -> relax.VarBinding:
    value = relax.BlockBuilder().normalize(relax.op.concat(list(tensors), axis=1))
    return relax.VarBinding(result, value)


def _before_weights(operator: Chained) -> int:
    """Arguments before the weights; those after them are a previous result."""
    match operator:
        case Embedding():
            return operator.before_weights
        case CandidateLogits():
            return 2
        case ExpertLinear(rows=Few()):
            return 2 + (operator.in_dtype == PACKED)
        case ExpertLinear(rows=One()):
            return 2 if operator.is_gate_up else 3
    return 3 + (operator.in_dtype == PACKED)


def _vectors(operator: Linear) -> int:
    """Arguments before the weights: x, or its words and scales, or words by a step."""
    return 2 if operator.in_dtype == PACKED and not operator.steps_in else 1


def _one_after_the_other(call: OperatorCall[Chained], before: int, max_buffers: int) -> list[Step]:
    operator = call.operator
    layout, step = operator.layout, operator.layout.tensors_per_split
    first, later = ((max_buffers - before - others) // step for others in (1, 2))
    (result,) = call.results
    spec = (tuple(result.ty.shape), str(result.ty.dtype))
    weights, row = call.args[before:], 0
    calls: list[Step] = []
    previous: Sequence[relax.Var] = ()
    ranges = list(split_calls(len(layout.split_rows), first, later))
    for number, splits in enumerate(ranges):
        rows = layout.split_rows[splits.start : splits.stop]
        held = replace(layout, split_rows=rows)
        part = _of_rows(operator, held, row, accumulate=number > 0)
        own = weights[splits.start * step : splits.stop * step]
        is_last = number == len(ranges) - 1
        results = [result] if is_last else result_vars("split", [spec])
        calls.append(OperatorCall(part, [*call.args[:before], *own, *previous], results))
        previous, row = results, row + sum(rows)
    return calls


def _of_rows(operator: Chained, layout: WeightLayout, begin: int, accumulate: bool) -> Chained:
    """The operator on some of its row splits, which begin at a row."""
    if isinstance(operator, Embedding | CandidateLogits):
        return replace(operator, layout=layout, row_begin=begin, accumulate=accumulate)
    first = begin // operator.expert_rows
    return replace(operator, layout=layout, expert_begin=first, accumulate=accumulate)

"""Two matmuls of one position that need nothing of each other, in one launch.

Before::

    y = linear(x, weights)
    z = linear(x, other_weights)

After, where the first of them stood::

    y, z = linear_pair(x, weights, other_weights)
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import relax

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.linear_pair import LinearPair, may_be_first, may_be_second
from gemma4_compile.passes.fusion_limits import FusionLimits, weight_count
from gemma4_compile.passes.operator_graph import (
    AnyCall,
    OperatorCall,
    OperatorGraph,
    Other,
    Step,
    is_call_of,
)

LinearCall = OperatorCall[Linear]


def fuse_linear_pairs(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Move each small plain matmul into the launch of the first before it that can take it."""
    if limits.fits_one_launch is None:
        return
    for second in graph.calls(Linear):
        is_small = weight_count(second) <= limits.tuning.max_paired_weights
        if is_small and may_be_second(second.operator):
            pairs = ((one, _pair(one, second, limits)) for one in _before(graph, second))
            first, pair = next((found for found in pairs if found[1] is not None), (None, None))
            if first is not None and pair is not None:
                graph.replace([second, first], [pair])


def _before(graph: OperatorGraph, second: LinearCall) -> Iterator[LinearCall]:
    """The matmuls in front of `second` that have all of its arguments in front of them."""
    missing = {arg for arg in second.args if isinstance(arg, relax.Var)}
    missing &= {result for step in graph.steps for result in _results(step)}  # not parameters
    for step in graph.steps:
        if step is second:
            return
        if not missing and is_call_of(step, Linear) and may_be_first(step.operator):
            yield step
        missing.difference_update(_results(step))


def _results(step: Step) -> list[relax.Var]:
    return [step.binding.var] if isinstance(step, Other) else step.results


def _pair(first: LinearCall, second: LinearCall, limits: FusionLimits) -> AnyCall | None:
    """Both in one launch, if their blocks are alike and it may bind what they read and make."""
    assert limits.fits_one_launch is not None, "asked before"
    if type(first.operator) is not Linear or not limits.fits_one_launch(
        first.operator, second.operator
    ):
        return None
    count = 2 if second.operator.in_dtype == PACKED else 1
    shared = _is_shared(first, second, count)
    args = [*first.args, *(second.args[count:] if shared else second.args)]
    results = [*first.results, *second.results]
    if not limits.binds(args, len(results)):
        return None
    return OperatorCall(LinearPair(first.operator, second.operator, shared), args, results)


def _is_shared(first: LinearCall, second: LinearCall, count: int) -> bool:
    """Return whether both multiply by the same vector, of `count` arguments, in the same form."""
    one, other = first.operator, second.operator
    if not one.is_plain or one.steps_in or one.in_dtype != other.in_dtype:
        return False
    if one.in_dtype == PACKED and one.interleaved != other.interleaved:
        return False
    return all(x.same_as(y) for x, y in zip(first.args[:count], second.args[:count], strict=True))

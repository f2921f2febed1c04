"""Kernels for a few rows in functions that have no more than a few.

Such a function has the attribute FEW_ROWS_ATTR, the most rows that it is called with. Before::

    y = linear(x, weights)                      of n rows
    y = int8_linear(words, scales, weights)     of n rows

After::

    y = few_row_linear(x, weights)
    y = int8_few_row_linear(words, scales, weights)

Their meaning is the same. Only GPUs have kernels for few rows.
"""

from __future__ import annotations

from gemma4_compile.operators.few_row_linear import FewRowLinear, Int8FewRowLinear
from gemma4_compile.operators.int8_linear import Int8Linear
from gemma4_compile.operators.linear import Linear
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph, fields_of

FORMS: tuple[tuple[type[Linear], type[FewRowLinear | Int8FewRowLinear]], ...] = (
    (Linear, FewRowLinear),
    (Int8Linear, Int8FewRowLinear),
)


def few_rows(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Replace what works on all rows of a function that has a few."""
    most = graph.few_rows
    if most is None or limits.few_rows is None:
        return
    for many, few in FORMS:
        for linear in graph.calls(many):
            if linear.operator.rows is None:
                operator = few(
                    **fields_of(linear.operator, linear.operator.in_dtype), most_rows=most
                )
                graph.replace([linear], [OperatorCall(operator, linear.args, linear.results)])

"""Memory for splits of the keys of a chunk's attention, where a short chunk would not fill a GPU.

Before::

    y = prefill_attention(q, key, value, positions)

After::

    y, sums, weights = divided_attention(q, key, value, positions)

Nothing reads the memory. It is a result so that it is planned as all results are.
"""

from __future__ import annotations

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.rows import Chunk
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph, result_vars


def divide_chunk_attention(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Let short chunks divide their keys among blocks."""
    if limits.divided is None:
        return
    for call in graph.calls(PrefillAttention):
        operator = limits.divided(call.operator)
        if operator is None or not isinstance(operator.rows, Chunk):
            continue
        memory = result_vars("memory", list(operator.memory().values()))
        graph.replace([call], [OperatorCall(operator, call.args, [*call.results, *memory])])

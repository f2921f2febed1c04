"""Words of a few packed rows in tiles, where only matmuls on tensor cores read them.

Before::

    residual, words, scales = quantized_few_row_norm(...)          words (n, width / 4)
    y = int8_linear(words, scales, weights)

After: the same operators with `tiled`, and words (n / 8, width / 32, 8, 8). Their meaning is the
same. What makes the rows may be such a norm or combine, the norms after experts, or a matmul on
tensor cores whose result is packed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from tvm import relax

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    TILE_ROWS,
    WORD,
    QuantizeRows,
    tiles_of,
)
from gemma4_compile.operators.activations import PACKED, Int8, PackedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import Few
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import (
    AnyCall,
    OperatorCall,
    OperatorGraph,
    is_call_of,
    result_vars,
)


def tile_rows(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Let what makes packed rows for tensor cores alone write their words in tiles."""
    if graph.few_rows is None or limits.reads_tiles is None:
        return
    for call in reversed(list(graph.steps)):  # a reader may make rows itself: it comes first
        if not isinstance(call, OperatorCall):
            continue
        tiled = _in_tiles(call.operator, limits)
        readers = _readers(graph, call.results[-2], limits) if tiled is not None else []
        if tiled is None or not readers:
            continue
        words = call.results[-2]
        rows, width = words.ty.shape[0], int(words.ty.shape[1]) * WORD
        shape = tiles_of(rows), width // GROUP, TILE_ROWS, GROUP // WORD
        (own,) = result_vars("tiles", [(shape, words.ty.dtype)])
        results = [*call.results[:-2], own, call.results[-1]]
        for reader in readers:
            operator = replace(reader.operator, activations=Int8(tiled=True))
            args = [own, *reader.args[1:]]
            graph.replace([reader], [OperatorCall(operator, args, reader.results)])
        graph.replace([call], [OperatorCall(tiled, call.args, results)])


def _in_tiles(operator: Operator, limits: FusionLimits) -> Operator | None:
    """The operator that makes the same rows in tiles; None where there is none."""
    match operator:
        case QuantizeRows() | ResidualNorm(rows=Few()) | CombineSplits(rows=Few()):
            pass
        case Linear() if is_of_few(operator) and _is_on_tensor_cores(operator, limits):
            pass
        case _:
            return None
    if not isinstance(operator.output, PackedOutput):
        return None
    return replace(operator, output=replace(operator.output, tiled=True))


def is_of_few(operator: Operator) -> TypeGuard[Linear]:
    """Return whether it is a matmul of a few rows on int8 by groups."""
    return isinstance(operator, Linear) and operator.is_by_groups and isinstance(operator.rows, Few)


def _is_on_tensor_cores(operator: Linear, limits: FusionLimits) -> bool:
    assert limits.reads_tiles is not None, "the target has tensor cores"
    return operator.in_dtype == PACKED and limits.reads_tiles(operator.layout)


def _readers(
    graph: OperatorGraph, words: relax.Var, limits: FusionLimits
) -> list[OperatorCall[Linear]]:
    """The matmuls that read words; none if anything else does, too."""
    readers: list[AnyCall] = [
        step
        for step in graph.steps
        if isinstance(step, OperatorCall) and step.args and words.same_as(step.args[0])
    ]
    found = [call for call in readers if is_call_of(call, Linear) and is_of_few(call.operator)]
    fits = all(_is_on_tensor_cores(call.operator, limits) for call in found)
    return found if fits and len(found) == graph.reader_count(words) else []

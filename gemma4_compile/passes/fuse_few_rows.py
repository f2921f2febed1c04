"""What is before and after a matmul of a few rows in its launch: after few_rows.py.

Before::

    residual, words, scales = quantized_few_row_norm(branch, residual, ...)
    product = int8_few_row_linear(words, scales, weights)      gate and up
    words, scales = quantize_rows(product)

After, where rows are not too long::

    residual, words, scales = int8_normed_few_row_linear(branch, residual, ..., weights)

And with the splits of an attention, where a target's tuning says so::

    words, scales = quantized_few_row_combine(o_partial, split_lse)
    y = int8_few_row_linear(words, scales, weights)

becomes ``int8_combined_few_row_linear(o_partial, split_lse, weights)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import DataType, relax

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.few_row_linear import (
    Int8CombinedFewRowLinear,
    Int8FewRowLinear,
    Int8NormedFewRowLinear,
)
from gemma4_compile.operators.few_row_quantization import (
    QuantizedFewRowCombine,
    QuantizedFewRowNorm,
)
from gemma4_compile.operators.int8_linear import PACKED_ROWS
from gemma4_compile.passes.few_rows import rounding_of
from gemma4_compile.passes.fusion_limits import FusionLimits, weight_count
from gemma4_compile.passes.operator_graph import (
    OperatorCall,
    OperatorGraph,
    fields_of,
    is_call_of,
)


def fuse_few_rows(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse matmuls of a few rows with the rounding after them, and the norm or combine before."""
    for gate_up in graph.calls(Int8FewRowLinear):
        _quantize_product(graph, gate_up, limits)
    for normed in graph.calls(QuantizedFewRowNorm):
        _norm_in_reader(graph, normed, limits)
    for combined in graph.calls(QuantizedFewRowCombine):
        _combine_in_reader(graph, combined, limits)


def _quantize_product(
    graph: OperatorGraph, gate_up: OperatorCall[Int8FewRowLinear], limits: FusionLimits
) -> None:
    """Let gate and up round their product, if nothing else reads it."""
    operator, rounding = gate_up.operator, rounding_of(graph, gate_up.results[0])
    if rounding is None or operator.epilogue != Epilogue.GELU_PAIRS.value:
        return
    if operator.layout.rows % PACKED_ROWS or operator.cols > limits.tuning.few_row_product_width:
        return
    if not limits.binds(gate_up.args, len(rounding.results)):
        return
    order = rounding.operator.interleaved
    packed = replace(operator, packed_out=True, interleaved_out=order)
    graph.replace([rounding], [])
    graph.replace([gate_up], [OperatorCall(packed, gate_up.args, rounding.results)])


def _norm_in_reader(
    graph: OperatorGraph, norm: OperatorCall[QuantizedFewRowNorm], limits: FusionLimits
) -> None:
    """Let a matmul make its rows: a norm and its rounding that nothing else reads."""
    residual, *packed = norm.results
    linear = _matmul_of(graph, packed)
    if linear is None:
        return
    width = min(limits.few_row_width, limits.tuning.few_row_norm_width)
    if norm.operator.width > width or graph.is_read_between(residual, norm, linear):
        return
    if weight_count(linear) > limits.tuning.max_int8_weights:
        return
    args, results = [*norm.args, *linear.args[2:]], [residual, *linear.results]
    if not limits.binds(args, len(results)):
        return
    fused = Int8NormedFewRowLinear(
        **fields_of(linear.operator, "float32"),
        eps=norm.operator.eps,
        scaled=norm.operator.scaled,
        normed=norm.operator.normed,
    )
    graph.replace([norm, linear], [OperatorCall(fused, args, results)])


def _combine_in_reader(
    graph: OperatorGraph, combine: OperatorCall[QuantizedFewRowCombine], limits: FusionLimits
) -> None:
    """Let a matmul put the splits of an attention together, if nothing else reads the result."""
    linear, operator = _matmul_of(graph, combine.results), combine.operator
    width = operator.heads * operator.head_dim
    size = DataType(operator.in_dtype).bits // 8 * operator.splits * width
    if linear is None or width > limits.few_row_width:
        return
    if size > limits.tuning.few_row_combine_bytes:
        return
    if operator.splits > limits.tuning.max_combined_splits:
        return
    fused = Int8CombinedFewRowLinear(
        **fields_of(linear.operator, operator.in_dtype),
        heads=operator.heads,
        head_dim=operator.head_dim,
        splits=operator.splits,
    )
    args = [*combine.args, *linear.args[2:]]
    if limits.binds(args, len(linear.results)):
        graph.replace([combine, linear], [OperatorCall(fused, args, linear.results)])


def _matmul_of(
    graph: OperatorGraph, packed: Sequence[relax.Var]
) -> OperatorCall[Int8FewRowLinear] | None:
    """The matmul that reads words and scales, if nothing else does."""
    linear = graph.only_reader(packed[0])
    if not is_call_of(linear, Int8FewRowLinear) or graph.reader_count(packed[1]) != 1:
        return None
    return linear

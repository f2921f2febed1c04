"""Kernels for a few rows in functions that have no more than a few.

Such a function has the attribute FEW_ROWS_ATTR, the most rows that it is called with. Before::

    y = linear(x, weights)                      of n rows
    y = int8_linear(words, scales, weights)     of n rows
    y = prefill_attention(q, key, value, positions)     or one after the other of parts of the keys

After::

    y = linear(x, weights)                      of rows that are Few
    y = int8_linear(words, scales, weights)
    o_partial, split_lse = split_attention(q, key, value, positions)
    y = combine_splits(o_partial, split_lse)

A layer without keys of its own norms and rotates its queries in the same launch::

    q = qk_norm_rope_cache(projected, q_norm, positions, rotary)
    o_partial, split_lse = split_attention(q, key, value, positions)

becomes ``split_attention(projected, key, value, positions, q_norm, rotary)`` with `NormedQuery`.
Where a matmul quantises what a norm or a combine makes for it alone::

    residual, hidden = residual_norm(...)
    words, scales = quantize_rows(hidden)

becomes ``residual, words, scales = quantized_few_row_norm(...)``, as of one position. A matmul
whose rows are short rounds them itself, and gate and up of rows that are not too long round their
product. Their meaning is the same. Only GPUs have kernels for few rows. Experts:
few_row_experts.py.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.operators.activation_quantization import (
    GROUP,
    PACKED_ROWS,
    QuantizeRows,
)
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import Chunk, Few
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.passes.fuse_norm_linear import int8_matmuls, matmuls
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import (
    AnyCall,
    OperatorCall,
    OperatorGraph,
    is_call_of,
    result_vars,
)

SHORT = 512
"""Channels of rows that every block of a matmul rounds again, in the time of a launch at most."""


def few_rows(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Replace what works on all rows of a function that has a few."""
    most = graph.few_rows
    if most is None or limits.few_rows is None:
        return
    splits: list[relax.Var] = []
    for attention in graph.calls(PrefillAttention):
        splits, calls = _in_splits(attention, splits, most, limits.few_rows)
        graph.replace([attention], calls)
    for of_few in graph.calls(SplitAttention):
        if isinstance(of_few.operator.rows, Few) and of_few.operator.part.is_whole:
            _norm_in_attention(graph, of_few, limits)
    for linear in matmuls(graph):
        if isinstance(linear.operator.rows, Chunk):
            operator = replace(linear.operator, rows=Few(most))
            graph.replace([linear], [OperatorCall(operator, linear.args, linear.results)])
    for quantize in graph.calls(QuantizeRows):
        _quantize_in_producer(graph, quantize, most)
    for few_linear in few_matmuls(graph):
        _quantize_in_reader(graph, few_linear)
    for gate_up in few_matmuls(graph):
        _quantize_product(graph, gate_up, limits)


def few_matmuls(graph: OperatorGraph) -> list[OperatorCall[Linear]]:
    """The matmuls of a few rows on int8 by groups."""
    return [
        call
        for call in int8_matmuls(graph)
        if call.operator.is_by_groups and isinstance(call.operator.rows, Few)
    ]


def _in_splits(
    attention: OperatorCall[PrefillAttention],
    carried: list[relax.Var],
    most: int,
    options: AttentionOptions,
) -> tuple[list[relax.Var], list[AnyCall]]:
    """The attention over splits of the keys, which is the result, and their combination.

    Of a part of the keys it goes on from `carried`, the splits of the part before; those of the
    last part are combined.
    """
    operator, part = attention.operator, attention.operator.part
    heads, dim, dtype = operator.heads, operator.head_dim, operator.out_dtype
    splits = options.splits_of_rows(operator.window, operator.kv_heads, dim, most)
    partial = SplitAttention(
        rows=Few(most),
        heads=heads,
        kv_heads=operator.kv_heads,
        head_dim=dim,
        window=operator.window,
        cache_dtype=operator.cache_dtype,
        cache_rows=operator.cache_rows,
        splits=splits,
        grain=options.grain_of(dim),
        part=part,
    )
    assert operator.cache_dtype == dtype, "both are the dtype of the activations"
    rows = attention.args[0].ty.shape[0]
    specs: list[TensorSpec] = [
        ((rows, splits, heads, dim), dtype),
        ((rows, splits, heads, 2), "float32"),
    ]
    results = result_vars("splits", specs)
    combine = CombineSplits(heads, dim, splits, dtype, Few(most))
    calls: list[AnyCall] = [OperatorCall(partial, attention.args, results)]
    if not part.is_first:
        args = [*attention.args[: -len(carried)], *carried]
        places = tuple(range(len(args) - len(carried), len(args)))
        calls = [OperatorCall(partial, args, results, places)]
    if part.index == part.count - 1:
        calls.append(OperatorCall(combine, list(results), attention.results[:1]))
    return results, calls


def _norm_in_attention(
    graph: OperatorGraph, attention: OperatorCall[SplitAttention], limits: FusionLimits
) -> None:
    """Let an attention norm and rotate its queries, if its layer has no keys of its own."""
    q, *cache, positions = attention.args
    before = graph.only_producer(q, QkNormRopeCache)
    if before is None:
        return
    prepare = before.operator
    projected, q_norm, *_ = before.args
    args = [projected, *cache, positions, q_norm, before.args[-1]]
    if prepare.owns_kv or prepare.has_copies or not limits.binds(args, len(attention.results)):
        return
    query = NormedQuery(prepare.pairs, prepare.rotary_offset, prepare.rotary_total, prepare.eps)
    fused = replace(attention.operator, query=query)
    graph.replace([before, attention], [OperatorCall(fused, args, attention.results)])


def rounding_of(graph: OperatorGraph, rows: relax.Var) -> OperatorCall[QuantizeRows] | None:
    """The call that rounds some rows, if nothing else reads them."""
    reader = graph.only_reader(rows)
    return reader if is_call_of(reader, QuantizeRows) else None


def _quantize_in_producer(
    graph: OperatorGraph, quantize: OperatorCall[QuantizeRows], most: int
) -> None:
    """Let the norm or the combine before it round its rows, if nothing else reads them."""
    vector, order = quantize.args[0], quantize.operator.output
    before = graph.producer(vector)
    if before is None or not vector.same_as(before.results[-1]):
        return
    is_residual = is_call_of(before, ResidualNorm) and len(before.results) == 1
    if not is_residual and graph.reader_count(before.results[-1]) != 1:
        return
    if is_call_of(before, CombineSplits) and before.operator.head_dim % GROUP == 0:
        combine = replace(before.operator, output=order)
        graph.replace([before, quantize], [OperatorCall(combine, before.args, quantize.results)])
        return
    if not is_call_of(before, ResidualNorm) or before.operator.packs:
        return
    if before.operator.stacked or before.operator.branches > 1:
        return
    norm, residual = before.operator, before.results[0]
    if graph.is_read_between(residual, before, quantize):
        return
    fused = replace(norm, rows=Few(most), output=order)
    call = OperatorCall(fused, before.args, [residual, *quantize.results])
    graph.replace([before, quantize], [call])


def _quantize_in_reader(graph: OperatorGraph, linear: OperatorCall[Linear]) -> None:
    """Let a matmul round its rows, if they are short and nothing else reads them."""
    before = graph.producer(linear.args[0])
    if not is_call_of(before, QuantizeRows) or linear.operator.cols > SHORT:
        return
    if any(graph.reader_count(result) != 1 for result in before.results):
        return
    own = replace(linear.operator, in_dtype=before.operator.in_dtype)
    call = OperatorCall(own, [before.args[0], *linear.args[2:]], linear.results)
    graph.replace([before, linear], [call])


def _quantize_product(
    graph: OperatorGraph, gate_up: OperatorCall[Linear], limits: FusionLimits
) -> None:
    """Let gate and up round their product, if nothing else reads it."""
    operator, rounding = gate_up.operator, rounding_of(graph, gate_up.results[0])
    if rounding is None or operator.epilogue != Epilogue.GELU_PAIRS.value:
        return
    if operator.layout.rows % PACKED_ROWS or operator.cols > limits.tuning.few_row_product_width:
        return
    if not limits.binds(gate_up.args, len(rounding.results)):
        return
    packed = replace(operator, output=rounding.operator.output)
    graph.replace([rounding], [])
    graph.replace([gate_up], [OperatorCall(packed, gate_up.args, rounding.results)])

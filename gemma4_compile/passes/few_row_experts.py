"""Experts of a few rows, in functions that have no more than a few (few_rows.py).

Before::

    ids, weights, hidden = router(residual, ...)
    order, tiles = permute_by_expert(ids)
    gated = expert_linear(hidden, order, tiles, weights) in the order
    outputs = expert_linear(gated, order, tiles, weights)
    chosen = combine_experts(outputs, weights)
    residual, x = residual_norm(dense, chosen, residual, ...)   two branches

After::

    scores, hidden = router_scores(residual, ...)
    ids, weights = top_k_experts(scores, ...)
    gated = expert_linear(hidden, ids, weights)          in the order of the ids
    outputs = expert_linear(gated, ids, weights)
    residual, x = residual_norm(dense, outputs, weights, residual, ...)

and with matmuls on int8 groups the product of gate and up leaves its kernel rounded, and the norms
round their rows themselves, also the experts' input::

    residual, x = residual_norm(...)                     before attention's end
    words, scales = quantize_rows(x)
    ids, weights, hidden = router(residual, ...)
    words, scales = quantize_rows(hidden)

becomes ``residual, words, scales, words, scales = quantized_branch_norms(...)``, then the router,
which is two launches everywhere: a block of one row would read the whole projection alone.
"""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.operators.activation_quantization import PACKED_ROWS
from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.few_row_expert_norms import QuantizedBranchNorms
from gemma4_compile.operators.moe import (
    CombineExperts,
    PermuteByExpert,
    Router,
    RouterScores,
    TopKExperts,
)
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import Chunk, Few
from gemma4_compile.passes.few_rows import rounding_of
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import (
    OperatorCall,
    OperatorGraph,
    is_call_of,
    result_vars,
)


def few_row_experts(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Replace what works on the rows of one expert, and what is around it."""
    most = graph.few_rows
    if most is None or limits.few_rows is None:
        return
    for gemm in graph.calls(ExpertLinear):
        if isinstance(gemm.operator.rows, Chunk):
            _by_ids(graph, gemm, most)
    for gate_up in graph.calls(ExpertLinear):
        _quantize_product(graph, gate_up, limits)
    for router in graph.calls(Router):
        _quantize_branches(graph, router, most, limits)
    for router in graph.calls(Router):
        _divide_router(graph, router, most)
    for scores in graph.calls(RouterScores):
        _score_beside_norm(graph, scores, limits)
    for norm in graph.calls(ResidualNorm):
        _combine_in_norm(graph, norm, most, limits)


def _by_ids(graph: OperatorGraph, gemm: OperatorCall[ExpertLinear], most: int) -> None:
    """The matmul on the chosen experts themselves; their order goes when nothing reads it.

    Between gate and up and down there is at most a rounding, row by row, so that the order of
    the rows between them is theirs alone.
    """
    vectors = 2 if gemm.operator.in_dtype == PACKED else 1
    permute = graph.producer(gemm.args[vectors])
    assert is_call_of(permute, PermuteByExpert), "a chunk's pairs come in their order"
    args = [*gemm.args[:vectors], permute.args[0], *gemm.args[vectors + 2 :]]
    operator = replace(gemm.operator, rows=Few(most))
    graph.replace([gemm], [OperatorCall(operator, args, gemm.results)])
    if not any(graph.reader_count(result) for result in permute.results):
        graph.replace([permute], [])


def _quantize_product(
    graph: OperatorGraph, gate_up: OperatorCall[ExpertLinear], limits: FusionLimits
) -> None:
    """Let gate and up round their product, if one call has all experts."""
    operator, rounding = gate_up.operator, rounding_of(graph, gate_up.results[0])
    if rounding is None or not operator.is_gate_up or operator.expert_rows % PACKED_ROWS:
        return
    if not limits.binds(gate_up.args, 2):
        return
    packed = replace(operator, output=rounding.operator.output)
    graph.replace([rounding], [])
    graph.replace([gate_up], [OperatorCall(packed, gate_up.args, rounding.results)])


def _quantize_branches(
    graph: OperatorGraph, router: OperatorCall[Router], most: int, limits: FusionLimits
) -> None:
    """Let the norm before both branches round the dense one's input and the experts'."""
    norm = graph.producer(router.args[0])
    if not is_call_of(norm, ResidualNorm) or not norm.operator.stacked:
        return
    dense = rounding_of(graph, norm.results[1])
    experts = rounding_of(graph, router.results[2])
    if dense is None or experts is None or not norm.args[2].same_as(router.args[1]):
        return
    orders = dense.operator.output.interleaved, experts.operator.output.interleaved
    operator = QuantizedBranchNorms(norm.operator.width, norm.operator.eps, *orders, Few(most))
    results = [norm.results[0], *dense.results, *experts.results]
    if not limits.binds(norm.args, len(results)):
        return
    for rounding in (dense, experts):
        graph.replace([rounding], [])
    graph.replace([norm], [OperatorCall(operator, norm.args, results)])


def _divide_router(graph: OperatorGraph, router: OperatorCall[Router], most: int) -> None:
    """Let many blocks read the projection; the normed row goes where nothing reads it any more."""
    old, (ids, weights, hidden) = router.operator, router.results
    residual, vectors, projection, expert_scale = router.args
    rows = residual.ty.shape[0]
    dtype = old.out_dtype if graph.reader_count(hidden) else None
    fields = old.width, old.experts, old.eps, old.factor, old.weight_dtype
    (scores,) = result_vars("scores", [((rows, old.experts), "float32")])
    first = OperatorCall(
        RouterScores(*fields, dtype, Few(most)),
        [residual, vectors, projection],
        [scores] if dtype is None else [scores, hidden],
    )
    choice = TopKExperts(old.experts, old.top_k, old.width, Few(most))
    second = OperatorCall(choice, [scores, expert_scale], [ids, weights])
    graph.replace([router], [first, second])


def _score_beside_norm(
    graph: OperatorGraph, scores: OperatorCall[RouterScores], limits: FusionLimits
) -> None:
    """Let the norm before both branches have the router's scores made in its launch."""
    residual, vectors, projection = scores.args
    norm, old = graph.producer(residual), scores.operator
    if not is_call_of(norm, QuantizedBranchNorms) or not norm.args[2].same_as(vectors):
        return
    operator = replace(
        norm.operator,
        experts=old.experts,
        factor=old.factor,
        router_dtype=old.weight_dtype,
    )
    args, results = [*norm.args, projection], [*norm.results, *scores.results]
    if len(scores.results) > 1 or not limits.binds(args, len(results)):
        return
    graph.replace([scores], [])
    graph.replace([norm], [OperatorCall(operator, args, results)])


def _combine_in_norm(
    graph: OperatorGraph, norm: OperatorCall[ResidualNorm], most: int, limits: FusionLimits
) -> None:
    """Let the norm add the experts' outputs up and, where it can, round its rows."""
    combine = graph.only_producer(norm.args[1], CombineExperts)
    if norm.operator.branches == 1 or combine is None:
        return
    operator = replace(norm.operator, rows=Few(most), top_k=combine.operator.top_k)
    call = OperatorCall(operator, [norm.args[0], *combine.args, *norm.args[2:]], norm.results)
    if not limits.binds(call.args, len(call.results)):
        return
    graph.replace([combine, norm], [call])
    residual, hidden = call.results
    rounding = rounding_of(graph, hidden)
    if rounding is None or not limits.binds(call.args, len(call.results) + 1):
        return
    packed = replace(operator, output=rounding.operator.output)
    graph.replace([rounding], [])
    graph.replace([call], [OperatorCall(packed, call.args, [residual, *rounding.results])])

"""The router's scores in the launch of the dense MLP's gate and up matmul.

Before::

    residual, hidden = residual_norm(branch, residual, vectors)
    y = linear(hidden, weights)
    routed = router_scores(residual, vectors, projection)

After::

    residual, routed, y = linear(branch, residual, vectors, projection, weights)   prologue Routed
"""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.operators.moe import RouterScores
from gemma4_compile.operators.prologues import Routed
from gemma4_compile.passes.fuse_norm_linear import can_fuse, fused_dtype, matmuls, norm_of
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph


def fuse_router(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse a norm of stacked weights, its matmul and the router's scores of the same residual."""
    routers = {call.args[0]: call for call in graph.calls(RouterScores)}
    for linear in matmuls(graph):
        norm = norm_of(graph, linear)
        router = None if norm is None else routers.get(norm.results[0])
        if norm is None or router is None or not can_fuse(linear, limits):
            continue
        scores = router.operator
        routed = Routed(scores.eps, scores.experts, scores.factor, scores.weight_dtype)
        operator = replace(linear.operator, in_dtype=fused_dtype(linear), prologue=routed)
        args = [*norm.args, router.args[2], *linear.args[1:]]
        results = [norm.results[0], *router.results, *linear.results]
        if limits.binds(args, len(results)):
            fusion = OperatorCall(operator, args, results)
            graph.replace([norm, router, linear], [fusion])

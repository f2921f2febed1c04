"""The router's scores in the launch of the dense MLP's gate and up matmul.

Before::

    residual, hidden = residual_norm(branch, residual, vectors)
    y = linear(hidden, weights)
    routed = router_scores(residual, vectors, projection)

After::

    residual, routed, y = routed_linear(branch, residual, vectors, projection, weights)
"""

from __future__ import annotations

from gemma4_compile.operators.fused_linear import RoutedLinear
from gemma4_compile.operators.int8_linear import Int8Linear, Int8RoutedLinear
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.moe import RouterScores
from gemma4_compile.passes.fuse_norm_linear import can_fuse, fused_dtype, norm_of
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph, fields_of

FORMS: tuple[tuple[type[Linear], type[RoutedLinear | Int8RoutedLinear]], ...] = (
    (Linear, RoutedLinear),
    (Int8Linear, Int8RoutedLinear),
)


def fuse_router(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse a norm of stacked weights, its matmul and the router's scores of the same residual."""
    routers = {call.args[0]: call for call in graph.calls(RouterScores)}
    for plain, fused in FORMS:
        for linear in graph.calls(plain):
            norm = norm_of(graph, linear)
            router = None if norm is None else routers.get(norm.results[0])
            if norm is None or router is None or not can_fuse(linear, limits):
                continue
            scores = router.operator
            operator = fused(
                **fields_of(linear.operator, fused_dtype(linear)),
                eps=scores.eps,
                experts=scores.experts,
                factor=scores.factor,
                router_dtype=scores.weight_dtype,
            )
            args = [*norm.args, router.args[2], *linear.args[1:]]
            results = [norm.results[0], *router.results, *linear.results]
            if limits.binds(args, len(results)):
                fusion = OperatorCall(operator, args, results)
                graph.replace([norm, router, linear], [fusion])

"""Matmuls of one position that do the norm of their vector in their own launch.

Before::

    residual, hidden = residual_norm(branch, residual, w_branch, scalar, w_next)
    y = linear(hidden, weights)

After::

    residual, y = linear(branch, residual, w_branch, scalar, w_next, weights)   prologue Norm
"""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import One
from gemma4_compile.passes.fusion_limits import FusionLimits, weight_count
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph, is_call_of

NormCall = OperatorCall[ResidualNorm]


def fuse_norm_linear(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse each `ResidualNorm` of one position with its one matmul."""
    for linear in matmuls(graph):
        norm = norm_of(graph, linear)
        if norm is None or is_stacked(norm):
            continue
        operator = replace(
            linear.operator, in_dtype=fused_dtype(linear), prologue=norm_prologue(norm)
        )
        args = [*norm.args, *linear.args[1:]]
        results = [norm.results[0], *linear.results]
        if can_fuse(linear, limits) and limits.binds(args, len(results)):
            graph.replace([norm, linear], [OperatorCall(operator, args, results)])


def matmuls(graph: OperatorGraph) -> list[OperatorCall[Linear]]:
    """The matmuls on floats, then those on int8."""
    floats = [call for call in graph.calls(Linear) if not call.operator.is_int8]
    return [*floats, *int8_matmuls(graph)]


def int8_matmuls(graph: OperatorGraph) -> list[OperatorCall[Linear]]:
    """The matmuls on int8."""
    return [call for call in graph.calls(Linear) if call.operator.is_int8]


def norm_of(graph: OperatorGraph, linear: OperatorCall[Linear]) -> NormCall | None:
    """The norm of one position that makes a matmul's vector, and has no other reader of that.

    Without a norm after the addition the vector is the residual itself, which others may read,
    but only later.
    """
    vector = linear.args[0]
    norm = graph.producer(vector)
    operator = linear.operator
    if not isinstance(operator.rows, One) or operator.in_dtype == PACKED or not operator.is_plain:
        return None
    if not is_call_of(norm, ResidualNorm) or norm.operator.packs:
        return None
    normed = len(norm.results) > 1
    if normed and not vector.same_as(norm.results[1]):
        return None
    if normed and graph.reader_count(vector) != 1:
        return None
    return None if graph.is_read_between(norm.results[0], norm, linear) else norm


def is_stacked(norm: NormCall) -> bool:
    """Return whether a norm's weights are rows of one tensor, as the router's are."""
    return norm.operator.stacked > 0


def can_fuse(linear: OperatorCall[Linear], limits: FusionLimits) -> bool:
    """Return whether each block of a matmul may make the vector: by its length and theirs."""
    tuning = limits.tuning
    int8 = linear.operator.is_int8
    most = tuning.max_int8_weights if int8 else tuning.max_weights
    return linear.operator.cols <= limits.width and weight_count(linear) <= most


def fused_dtype(linear: OperatorCall[Linear]) -> str:
    """The dtype of the vector inside the fused kernel: int8 is rounded from float32."""
    return "float32" if linear.operator.is_int8 else linear.operator.in_dtype


def norm_prologue(norm: NormCall) -> Norm:
    """The prologue that a matmul gets from its norm."""
    operator = norm.operator
    return Norm(operator.eps, operator.scaled, operator.normed, operator.branches)

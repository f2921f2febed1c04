"""Norms and additions of the residual stream in one launch.

Before::

    y = rms_norm(branch, w_branch)                       float32
    residual = add(x, y)
    residual = multiply(residual, scalar)                a layer may scale the sum
    hidden = rms_norm(residual, w_next)                  of what comes next, if it norms the sum

After::

    residual, hidden = residual_norm(branch, x, w_branch, scalar, w_next)

At the end of a layer with experts, whose norms are rows of one tensor::

    both = add(rms_norm(dense, take(w, 0)), rms_norm(chosen, take(w, 1)))
    residual = multiply(add(x, rms_norm(both, take(w, 2))), scalar)
    hidden = rms_norm(residual, w_next)

becomes ``residual, hidden = residual_norm(dense, chosen, x, w, scalar, w_next)``. Two rows
of one tensor stay one argument, too: ``residual_norm(branch, x, w)`` has the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax

from gemma4_compile.operators.norms import ResidualNorm, RmsNorm
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import BuiltIn, OperatorCall, OperatorGraph

_ADD, _MULTIPLY, _TAKE = "relax.add", "relax.multiply", "relax.take"
NormCall = OperatorCall[RmsNorm]


@dataclass(frozen=True)
class _Sum:
    """``(residual + norm(branch)) * scalar``.

    Attributes
    ----------
    norm : its result has no other reader
    steps : that compute it, in order
    scalar : (1,) float32, or None for 1
    """

    norm: NormCall
    residual: relax.Expr
    scalar: relax.Expr | None
    steps: tuple[NormCall | BuiltIn, ...]

    @property
    def result(self) -> relax.Var:
        return self.steps[-1].results[0]


def fuse_residual_norm(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse each addition of a normed branch with the norm that reads the sum first, if one does."""
    del limits  # every target has the fused operators
    for fuse in (_fuse_experts, _fuse):  # whose two branches are a sum of a normed one, too
        for following in graph.calls(RmsNorm):
            total = _sum_before(graph, following)
            if total is not None:
                fuse(graph, total, following)
    for kind in (_MULTIPLY, _ADD):  # a scaled sum before the sum that it scales
        for step in graph.calls_of_built_in(kind):
            total = _sum_of(graph, step.results[0])
            if total is not None:
                _fuse(graph, total, None)


def _sum_before(graph: OperatorGraph, following: NormCall) -> _Sum | None:
    """The sum that a norm reads, if it is alike and nothing between them reads the sum."""
    total = _sum_of(graph, following.args[0])
    if total is None or graph.is_read_between(total.result, total.steps[-1], following):
        return None
    norm, operator = total.norm.operator, following.operator
    alike = (norm.rows, norm.width, norm.eps) == (operator.rows, operator.width, operator.eps)
    return total if alike else None


def _sum_of(graph: OperatorGraph, tensor: relax.Expr) -> _Sum | None:
    """The parts of a sum that is scaled or not."""
    product = graph.built_in(tensor, _MULTIPLY)
    if product is None:
        return _addition(graph, tensor)
    total, scalar = product.args
    found = _addition(graph, total)
    if found is None or graph.reader_count(found.result) != 1 or list(scalar.ty.shape) != [1]:
        return None
    return _Sum(found.norm, found.residual, scalar, (*found.steps, product))


def _addition(graph: OperatorGraph, tensor: relax.Expr) -> _Sum | None:
    """The parts of an addition of a branch that is normed for it alone."""
    addition = graph.built_in(tensor, _ADD)
    if addition is None:
        return None
    first, second = addition.args
    if not tvm_ffi.structural_equal(first.ty, second.ty):
        return None
    for residual, normed in ((first, second), (second, first)):
        norm = graph.only_producer(normed, RmsNorm)
        if norm is not None:
            return _Sum(norm, residual, None, (norm, addition))
    return None


def _fuse(graph: OperatorGraph, total: _Sum, following: NormCall | None) -> None:
    """Put one launch in the place of a sum and of the norm that follows it."""
    norm, (branch, w_branch) = total.norm.operator, total.norm.args
    weights, stacked = [w_branch], 0
    if following is not None:
        weights.append(following.args[1])
        stack = None if total.scalar is not None else _stack_of(graph, weights)
        if stack is not None:
            weights, stacked = [stack], int(stack.ty.shape[0])
    dtype = None if following is None else following.operator.out_dtype
    scalar = [] if total.scalar is None else [total.scalar]
    operator = ResidualNorm(norm.rows, norm.width, norm.eps, bool(scalar), dtype, stacked)
    args = [branch, total.residual, weights[0], *scalar, *weights[1:]]
    results = [total.result, *([] if following is None else following.results)]
    olds = [*total.steps, *([] if following is None else [following])]
    graph.replace(olds, [OperatorCall(operator, args, results)])
    _drop_rows(graph, [old.args[1] for old in olds if isinstance(old, OperatorCall)])


def _fuse_experts(graph: OperatorGraph, total: _Sum, following: NormCall) -> None:
    """Fuse the norms of two branches as well, if the sum has a dense one and experts."""
    both = _addition(graph, total.norm.args[0])
    if both is None or total.scalar is None or graph.reader_count(both.result) != 1:
        return
    dense = graph.only_producer(both.residual, RmsNorm)
    if dense is None:
        return
    norms, norm = [dense, both.norm, total.norm], total.norm.operator
    stack = _stack_of(graph, [one.args[1] for one in norms])
    alike = {(one.operator.rows, one.operator.width, one.operator.eps) for one in norms}
    if stack is None or int(stack.ty.shape[0]) != len(norms) or len(alike) != 1:
        return
    dtype = following.operator.out_dtype
    branches = [dense.args[0], both.norm.args[0]]
    operator = ResidualNorm(norm.rows, norm.width, norm.eps, True, dtype, branches=len(branches))
    args = [*branches, total.residual, stack, total.scalar, following.args[1]]
    results = [total.result, *following.results]
    olds = [dense, *both.steps, *total.steps, following]
    graph.replace(olds, [OperatorCall(operator, args, results)])
    _drop_rows(graph, [one.args[1] for one in norms])


def _stack_of(graph: OperatorGraph, weights: Sequence[relax.Expr]) -> relax.Expr | None:
    """The tensor whose first rows these weights are, in order."""
    rows = [graph.built_in(weight, _TAKE) for weight in weights]
    stacks = [row.args[0] for row in rows if row is not None]
    indices = [row.args[1] for row in rows if row is not None]
    constants = [int(one.value.numpy()) for one in indices if isinstance(one, tvm.ir.GenericConst)]
    if constants != list(range(len(weights))) or not all(one.same_as(stacks[0]) for one in stacks):
        return None
    return stacks[0]


def _drop_rows(graph: OperatorGraph, weights: Sequence[relax.Expr]) -> None:
    """Take out the rows of stacked weights that nothing reads any more."""
    for weight in weights:
        row = graph.built_in(weight, _TAKE)
        if row is not None and graph.reader_count(row.results[0]) == 0:
            graph.replace([row], [])

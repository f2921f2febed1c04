"""RMSNorm, and what comes between two matmuls: norm, residual addition, norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Expr, Index


def inverse_rms(x: te.Tensor, rows: Index, width: int, eps: float, name: str) -> te.Tensor:
    """``1 / sqrt(mean(x^2) + eps)`` of each row: (rows,), float32."""
    k = te.reduce_axis((0, width), name="k")
    squares = te.compute(
        (rows,), lambda i: te.sum(as_f32(x[i, k]) * as_f32(x[i, k]), axis=k), name=f"{name}_squares"
    )
    return te.compute(
        (rows,), lambda i: tirx.rsqrt(squares[i] / f32(width) + f32(eps)), name=f"{name}_rsqrt"
    )


@dataclass(frozen=True)
class RmsNorm(Operator):
    """``y = x / sqrt(mean(x^2) + eps) * w``.

    (x (rows, width) f32, w (width,) f32) -> (rows, width) out_dtype.

    The weight is w, not 1 + w (transformers 5.24.0, `Gemma4RMSNorm`).
    """

    kind: ClassVar[str] = "rms_norm"
    rows: Rows
    width: int
    eps: float
    out_dtype: str

    def definition(self) -> tirx.PrimFunc:
        rows = self.rows.extent()
        x = te.placeholder((rows, self.width), "float32", name="x")
        w = te.placeholder((self.width,), "float32", name="w")
        inverse = inverse_rms(x, rows, self.width, self.eps, "x")
        y = te.compute(
            (rows, self.width),
            lambda i, j: (x[i, j] * inverse[i] * w[j]).astype(self.out_dtype),
            name="y",
        )
        return te_prim_func([x, w, y])


def residual_sum(
    branch: te.Tensor,
    residual: te.Tensor,
    weight: Callable[[Expr], Expr],
    scalar: te.Tensor | None,
    eps: float,
) -> te.Tensor:
    """``(residual + norm(branch; weight)) * scalar``: (rows, width) float32.

    Parameters
    ----------
    branch, residual : (rows, width) float32
    weight : the norm's weight of a channel
    scalar : (1,) float32, or None for 1
    """
    rows, width = branch.shape[0], int(branch.shape[1])
    inverse = inverse_rms(branch, rows, width, eps, branch.op.name)

    def total(i: Expr, j: Expr) -> Expr:
        value = residual[i, j] + branch[i, j] * inverse[i] * weight(j)
        return value if scalar is None else value * scalar[0]

    return te.compute((rows, width), total, name="out")


@dataclass(frozen=True)
class ResidualNorm(Operator):
    """The end of a branch.

    ``r' = (r + norm(y; w_branch)) * scalar`` and, if asked, ``h = norm(r'; w_next)``.

    Arguments: y, r (rows, width) f32; w_branch (width,) f32; scalar (1,) f32 if `scaled`; w_next
    (width,) f32 if `next_dtype`. Results: r' (rows, width) f32 and, if `next_dtype`, h (rows,
    width) in it. With `stacked` both weights are the first rows of one argument (stacked, width).
    """

    kind: ClassVar[str] = "residual_norm"
    rows: Rows
    width: int
    eps: float
    scaled: bool
    next_dtype: str | None
    stacked: int = 0

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        y = te.placeholder((rows, width), "float32", name="y")
        residual = te.placeholder((rows, width), "float32", name="residual")
        if self.stacked:
            assert not self.scaled, "the first of a layer's norms"
            weights = te.placeholder((self.stacked, width), "float32", name="weights")
        else:
            weights = te.placeholder((width,), "float32", name="w_branch")
        args, scalar = [y, residual, weights], None
        if self.scaled:
            scalar = te.placeholder((1,), "float32", name="scalar")
            args.append(scalar)
        first = (lambda j: weights[0, j]) if self.stacked else (lambda j: weights[j])
        out = residual_sum(y, residual, first, scalar, self.eps)
        if self.next_dtype is None:
            return te_prim_func([*args, out])
        dtype = self.next_dtype
        w_next = te.placeholder((width,), "float32", name="w_next")
        inverse_out = inverse_rms(out, rows, width, self.eps, "out")

        def normed(i: Expr, j: Expr) -> Expr:
            weight = weights[1, j] if self.stacked else w_next[j]
            return (out[i, j] * inverse_out[i] * weight).astype(dtype)

        hidden = te.compute((rows, width), normed, name="hidden")
        return te_prim_func([*args, *([] if self.stacked else [w_next]), out, hidden])


@dataclass(frozen=True)
class PerLayerInputs(Operator):
    """Combine both halves of the per-layer embedding, for all layers at once.

    ``ple = (norm(context * context_scale; w) + tokens * token_scale) * input_scale``, the norm over
    each layer's `width` columns. Arguments: context, tokens (rows, layers * width) f32; w (width,)
    f32. Result: the same shape.
    """

    kind: ClassVar[str] = "per_layer_inputs"
    rows: Rows
    layers: int
    width: int
    eps: float
    context_scale: float
    token_scale: float
    input_scale: float

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        shape = (rows, self.layers * width)
        context = te.placeholder(shape, "float32", name="context")
        tokens = te.placeholder(shape, "float32", name="tokens")
        w = te.placeholder((width,), "float32", name="w")
        k = te.reduce_axis((0, width), name="k")
        scale = f32(self.context_scale)

        def square(i: Expr, layer: Expr) -> Expr:
            value = context[i, layer * width + k] * scale
            return te.sum(value * value, axis=k)

        squares = te.compute((rows, self.layers), square, name="squares")

        def combine(i: Expr, j: Expr) -> Expr:
            inverse = tirx.rsqrt(squares[i, j // width] / f32(width) + f32(self.eps))
            normed = context[i, j] * scale * inverse * w[j % width]
            return (normed + tokens[i, j] * f32(self.token_scale)) * f32(self.input_scale)

        return te_prim_func([context, tokens, w, te.compute(shape, combine, name="out")])


@dataclass(frozen=True)
class TakeLastRow(Operator):
    """The last position of a chunk: (rows, width) -> (1, width), same dtype.

    Rows are always symbolic.
    """

    kind: ClassVar[str] = "take_last_row"
    width: int
    dtype: str

    def definition(self) -> tirx.PrimFunc:
        rows = symbolic_rows(None)
        x = te.placeholder((rows, self.width), self.dtype, name="x")
        y = te.compute((1, self.width), lambda i, j: x[rows - 1 + i, j], name="y")
        return te_prim_func([x, y])


@dataclass(frozen=True)
class NormVector:
    """Norms and residual addition between two matmuls of one position.

    ``r' = (r + norm(b; w_branch)) * scalar`` and, if `normed`, ``x = norm(r'; w_next)``; else x is
    r'. Arguments: b, r (1, width) f32; w_branch (width,) f32; scalar (1,) f32 if `scaled`; w_next
    (width,) f32 if `normed`.
    """

    width: int
    eps: float
    scaled: bool
    normed: bool

    @property
    def branches(self) -> int:
        """Branches that are added to the residual."""
        return 1

    def definition(self) -> tuple[list[te.Tensor], te.Tensor, te.Tensor]:
        """Arguments, r' and x, both (1, width) float32."""
        shape, width = (1, self.width), self.width
        branch = te.placeholder(shape, "float32", name="branch")
        residual = te.placeholder(shape, "float32", name="residual")
        w_branch = te.placeholder((width,), "float32", name="w_branch")
        args: list[te.Tensor] = [branch, residual, w_branch]
        scalar = te.placeholder((1,), "float32", name="scalar") if self.scaled else None
        args += [] if scalar is None else [scalar]
        out = residual_sum(branch, residual, lambda j: w_branch[j], scalar, self.eps)
        if not self.normed:
            return args, out, out
        w_next = te.placeholder((width,), "float32", name="w_next")
        inverse_out = inverse_rms(out, 1, width, self.eps, "out")
        x = te.compute(shape, lambda i, j: out[i, j] * inverse_out[i] * w_next[j], name="x")
        return [*args, w_next], out, x


@dataclass(frozen=True)
class ExpertNormVector:
    """`NormVector` after a layer with experts.

    ``m = norm(d; w[0]) + norm(e; w[1])``, ``r' = (r + norm(m; w[2])) * scalar``,
    ``x = norm(r'; w_next)``. Arguments: d, e, r (rows, width) f32, the dense and the experts'
    branch; w (3, width) f32; scalar (1,) f32; w_next (width,) f32.
    """

    width: int
    eps: float

    @property
    def branches(self) -> int:
        """Branches that are added to the residual."""
        return 2

    def definition(
        self, rows: Index = 1, chosen: te.Tensor | None = None
    ) -> tuple[list[te.Tensor], te.Tensor, te.Tensor]:
        """Arguments, r' and x, both (rows, width) float32; e is `chosen` if that is given."""
        shape, width, eps = (rows, self.width), self.width, self.eps
        dense, argument, residual = (
            te.placeholder(shape, "float32", name=name) for name in ("dense", "experts", "residual")
        )
        experts = argument if chosen is None else chosen
        w_branches = te.placeholder((3, width), "float32", name="w_branches")
        scalar = te.placeholder((1,), "float32", name="scalar")
        w_next = te.placeholder((width,), "float32", name="w_next")
        scale_dense = inverse_rms(dense, rows, width, eps, "dense")
        scale_experts = inverse_rms(experts, rows, width, eps, "experts")

        def add(i: Expr, j: Expr) -> Expr:
            from_experts = experts[i, j] * scale_experts[i] * w_branches[1, j]
            return dense[i, j] * scale_dense[i] * w_branches[0, j] + from_experts

        both = te.compute(shape, add, name="both")
        out = residual_sum(both, residual, lambda j: w_branches[2, j], scalar, eps)
        scale_out = inverse_rms(out, rows, width, eps, "out")
        x = te.compute(shape, lambda i, j: out[i, j] * scale_out[i] * w_next[j], name="x")
        return [dense, experts, residual, w_branches, scalar, w_next], out, x


def norm_vector(
    width: int, eps: float, scaled: bool, normed: bool, branches: int
) -> NormVector | ExpertNormVector:
    """Return the norm of an operator with such fields."""
    if branches == 1:
        return NormVector(width, eps, scaled, normed)
    assert (branches, scaled, normed) == (2, True, True), "the end of a layer with experts"
    return ExpertNormVector(width, eps)

"""RMSNorm, and what comes between two matmuls: norm, residual addition, norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import pack
from gemma4_compile.operators.activations import FLOAT32, Output, PackedOutput
from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.rows import One, Rows
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
class NormVector:
    """Norms and residual addition between two matmuls.

    ``r' = (r + norm(b; w_branch)) * scalar`` and, if `normed`, ``x = norm(r'; w_next)``; else x is
    r'. Arguments: b, r (rows, width) f32; w_branch (width,) f32; scalar (1,) f32 if `scaled`;
    w_next (width,) f32 if `normed`. With `stacked` both weights are the first rows of one argument
    (stacked, width).
    """

    width: int
    eps: float
    scaled: bool
    normed: bool
    stacked: int = 0

    @property
    def branches(self) -> int:
        """Branches that are added to the residual."""
        return 1

    def definition(
        self, rows: Index = 1, dtype: str = "float32"
    ) -> tuple[list[te.Tensor], te.Tensor, te.Tensor]:
        """Arguments, r' (rows, width) float32 and x (rows, width) dtype."""
        shape, width = (rows, self.width), self.width
        branch = te.placeholder(shape, "float32", name="branch")
        residual = te.placeholder(shape, "float32", name="residual")
        weights = te.placeholder((self.stacked, width), "float32", name="weights")
        w_branch = te.placeholder((width,), "float32", name="w_branch")
        w_next = te.placeholder((width,), "float32", name="w_next")
        scalar = te.placeholder((1,), "float32", name="scalar") if self.scaled else None
        first = (lambda j: weights[0, j]) if self.stacked else (lambda j: w_branch[j])
        out = residual_sum(branch, residual, first, scalar, self.eps)
        args = [branch, residual, weights if self.stacked else w_branch]
        args += [] if scalar is None else [scalar]
        if not self.normed:
            return args, out, out
        inverse = inverse_rms(out, rows, width, self.eps, "out")

        def normed(i: Expr, j: Expr) -> Expr:
            weight = weights[1, j] if self.stacked else w_next[j]
            return (out[i, j] * inverse[i] * weight).astype(dtype)

        args += [] if self.stacked else [w_next]
        return args, out, te.compute(shape, normed, name="x")


@dataclass(frozen=True)
class ExpertNormVector:
    """`NormVector` after a layer with experts.

    ``m = norm(d; w[0]) + norm(e; w[1])``, ``r' = (r + norm(m; w[2])) * scalar``,
    ``x = norm(r'; w_next)``. Arguments: d, e, r (rows, width) f32, the dense and the experts'
    branch; w (3, width) f32; scalar (1,) f32; w_next (width,) f32. With `top_k` those of
    `CombineExperts` are in the place of e, which it makes.
    """

    width: int
    eps: float
    top_k: int = 0

    @property
    def branches(self) -> int:
        """Branches that are added to the residual."""
        return 2

    def definition(
        self, rows: Index = 1, dtype: str = "float32"
    ) -> tuple[list[te.Tensor], te.Tensor, te.Tensor]:
        """Arguments, r' (rows, width) float32 and x (rows, width) dtype."""
        shape, width, eps = (rows, self.width), self.width, self.eps
        dense = te.placeholder(shape, "float32", name="dense")
        residual = te.placeholder(shape, "float32", name="residual")
        of_experts, experts = self._experts(rows)
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

        def normed(i: Expr, j: Expr) -> Expr:
            return (out[i, j] * scale_out[i] * w_next[j]).astype(dtype)

        x = te.compute(shape, normed, name="x")
        return [dense, *of_experts, residual, w_branches, scalar, w_next], out, x

    def _experts(self, rows: Index) -> tuple[list[te.Tensor], te.Tensor]:
        """The arguments of the experts' branch, and the branch."""
        if not self.top_k:
            experts = te.placeholder((rows, self.width), "float32", name="experts")
            return [experts], experts
        return combined_experts(rows, self.top_k, self.width)


def combined_experts(rows: Index, top_k: int, width: int) -> tuple[list[te.Tensor], te.Tensor]:
    """Arguments and result of `CombineExperts`."""
    outputs = te.placeholder((rows * top_k, width), "float32", name="outputs")
    weights = te.placeholder((rows, top_k), "float32", name="weights")
    k = te.reduce_axis((0, top_k), name="k")
    y = te.compute(
        (rows, width),
        lambda i, j: te.sum(weights[i, k] * outputs[i * top_k + k, j], axis=k),
        name="y",
    )
    return [outputs, weights], y


def norm_vector(
    width: int, eps: float, scaled: bool, normed: bool, branches: int
) -> NormVector | ExpertNormVector:
    """Return the norm of an operator with such fields."""
    if branches == 1:
        return NormVector(width, eps, scaled, normed)
    assert (branches, scaled, normed) == (2, True, True), "the end of a layer with experts"
    return ExpertNormVector(width, eps)


@dataclass(frozen=True)
class ResidualNorm(Operator):
    """The end of a branch, or with two `branches` of a layer with experts.

    ``r' = (r + norm(y; w_branch)) * scalar`` and, if asked, ``h = norm(r'; w_next)``.

    Arguments: of `NormVector` or, for two branches, of `ExpertNormVector`. Results: r' (rows,
    width) f32 and, if `next_dtype`, h (rows, width) in it, or words and scales of it; where nothing
    is normed, words and scales of r' itself.
    """

    kind: ClassVar[str] = "residual_norm"
    rows: Rows
    width: int
    eps: float
    scaled: bool
    next_dtype: str | None
    stacked: int = 0
    branches: int = 1
    top_k: int = 0
    output: Output = FLOAT32

    @property
    def name(self) -> str:
        if self.branches > 1 and not isinstance(self.rows, One):
            return "few_row_expert_norm" if self.top_k else "expert_residual_norm"
        if self.packs:
            return f"quantized_{self.rows.prefix}norm"
        return self.kind if self.branches == 1 else "expert_residual_norm"

    @property
    def variant(self) -> str:
        return self.name

    @property
    def packs(self) -> bool:
        return isinstance(self.output, PackedOutput)

    @property
    def normed(self) -> bool:
        """Whether there is a norm after the addition."""
        return self.next_dtype is not None

    @property
    def vector(self) -> NormVector | ExpertNormVector:
        """The norm."""
        if self.branches == 1:
            return NormVector(self.width, self.eps, self.scaled, self.normed, self.stacked)
        return ExpertNormVector(self.width, self.eps, self.top_k)

    def definition(self) -> tirx.PrimFunc:
        rows = self.rows.extent()
        match self.output:
            case PackedOutput(interleaved=interleaved, tiled=tiled):
                args, out, x = self.vector.definition(rows)
                return te_prim_func([*args, out, *pack(x, interleaved, tiled)])
        args, out, x = self.vector.definition(rows, self.next_dtype or "float32")
        return te_prim_func([*args, out, *([x] if self.normed else [])])


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

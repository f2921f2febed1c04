"""Operators between the matmuls of a conformer layer.

Matmuls may be clipped: their bounds are one argument (4,) float32, the least and the largest input,
the least and the largest result. Streams are float32, so that a clamp at 1e10, which protects
transformers' half-precision runs, is one here, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import Operator, TensorSpec, symbolic_rows, te_prim_func
from gemma4_compile.operators.examples import ATTENTION_F32, Sizes
from gemma4_compile.operators.math import as_f32, f32, softcap
from gemma4_compile.operators.norms import inverse_rms
from gemma4_compile.operators.pointwise import Columns
from gemma4_compile.operators.tir import i32
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

BOUNDS = 4
INPUT, RESULT = 0, 2  # where the bounds of a matmul's input, and of its result, begin
_BOUNDS_SPEC: TensorSpec = ((BOUNDS,), "float32")
_EXAMPLE_BOUNDS = [-0.8, 1.1, -0.7, 0.9]  # of which all clip some of the random inputs


def clipped(value: Expr, bounds: Buffer | None, side: int) -> Expr:
    """`value` within a matmul's bounds on one side, if it has any."""
    if bounds is None:
        return value
    return tirx.min(tirx.max(value, bounds[side]), bounds[side + 1])


def clamped(value: Expr, limit: float) -> Expr:
    """`value` within plus and minus `limit`; 0 for none."""
    return tirx.min(tirx.max(value, f32(-limit)), f32(limit)) if limit else value


def sigmoid(value: Expr) -> Expr:
    """``1 / (1 + exp(-x))``, by an exponential that does not overflow."""
    small = tirx.exp(-tirx.abs(value))
    return tirx.Select(value >= f32(0.0), f32(1.0), small) / (f32(1.0) + small)


def silu(value: Expr) -> Expr:
    """``x * sigmoid(x)``."""
    return value * sigmoid(value)


def softplus(value: Expr) -> Expr:
    """``log(1 + exp(x))``."""
    small = tirx.exp(-tirx.abs(value))
    return tirx.max(value, f32(0.0)) + tirx.log(f32(1.0) + small)


class _Bounded(Operator):
    """Operators with arguments whose names end in `bounds`."""

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return np.array(_EXAMPLE_BOUNDS) if name.endswith("bounds") else None


@dataclass(frozen=True)
class Clip(_Bounded, Columns):
    """Between two matmuls: the first one's result bounds, SiLU, the second one's input bounds.

    Arguments: x (rows, width) in_dtype; `after` and `before` (4,) f32, the bounds of the matmul
    that x comes after, and of the one that the result goes before, where they are asked for.
    """

    kind: ClassVar[str] = "clip"
    in_dtype: str
    out_dtype: str
    after: bool = False
    silu: bool = False
    before: bool = False

    @property
    def result_dtype(self) -> str:
        return self.out_dtype

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [
            ("x", ((rows, self.width), self.in_dtype)),
            *([("after_bounds", _BOUNDS_SPEC)] if self.after else []),
            *([("before_bounds", _BOUNDS_SPEC)] if self.before else []),
        ]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        rest = iter(args)
        value = as_f32(next(rest)[i, j])
        value = clipped(value, next(rest) if self.after else None, RESULT)
        value = silu(value) if self.silu else value
        return clipped(value, next(rest) if self.before else None, INPUT)


@dataclass(frozen=True)
class AddClipped(_Bounded, Columns):
    """``residual + clip(x)``: (rows, width) f32.

    Arguments: x, residual (rows, width) f32; the bounds of the matmul that x comes from, if any.
    """

    kind: ClassVar[str] = "add_clipped"
    clips: bool

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        spec: TensorSpec = ((rows, self.width), "float32")
        return [("x", spec), ("residual", spec), *([("bounds", _BOUNDS_SPEC)] * self.clips)]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        bounds = args[2] if self.clips else None
        return args[1][i, j] + clipped(args[0][i, j], bounds, RESULT)


@dataclass(frozen=True)
class GatedConv(_Bounded, Columns):
    """``sum_t w[c, t] * glu(clip(x))[i - taps + 1 + t, c]``: a causal convolution by channel.

    The gated linear unit is the first half of the columns times the sigmoid of the second.
    Arguments: x (rows, 2 * width) f32; w (width, taps) f32; the bounds of the matmul that x comes
    from, if any. Result: (rows, width) f32.

    References
    ----------
    transformers 5.24.0, `Gemma4AudioLightConv1d`.
    """

    kind: ClassVar[str] = "gated_conv"
    taps: int
    clips: bool = False

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [
            ("x", ((rows, 2 * self.width), "float32")),
            ("w", ((self.width, self.taps), "float32")),
            *([("bounds", _BOUNDS_SPEC)] * self.clips),
        ]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        x, w = args[:2]
        bounds = args[2] if self.clips else None
        total = f32(0.0)
        for tap in range(self.taps):
            before = self.taps - 1 - tap
            row = tirx.max(i32(i) - before, i32(0)) if before else i
            gate = sigmoid(clipped(x[row, j + self.width], bounds, RESULT))
            gated = clipped(x[row, j], bounds, RESULT) * gate
            seen = tirx.Select(i32(i) >= before, gated, f32(0.0)) if before else gated
            total = total + w[j, tap] * seen
        return total


@dataclass(frozen=True)
class ClippedNorm(_Bounded):
    """RMSNorm with what stands before and after it in a conformer layer.

    ``y = residual + factor * bound(silu(norm(clamp(bound(x) + bias)) * w))``, where every part but
    the norm may be left out: the bounds of the matmul that x comes from, those of the matmul that
    the result goes to. Arguments: x (rows, width) f32; bias, `after_bounds`, w, `before_bounds`,
    residual (rows, width) f32. Result: (rows, width) out_dtype.

    Attributes
    ----------
    limit : of the clamp, 0 for none
    factor : of the residual addition, 0 for none
    """

    kind: ClassVar[str] = "clipped_norm"
    width: int
    eps: float
    out_dtype: str
    weighted: bool = True
    biased: bool = False
    after: bool = False
    before: bool = False
    silu: bool = False
    limit: float = 0.0
    factor: float = 0.0

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        """Names, shapes and dtypes of the arguments."""
        matrix: TensorSpec = ((rows, self.width), "float32")
        vector: TensorSpec = ((self.width,), "float32")
        optional: Iterator[tuple[bool, str, TensorSpec]] = iter(
            (
                (self.biased, "bias", vector),
                (self.after, "after_bounds", _BOUNDS_SPEC),
                (self.weighted, "w", vector),
                (self.before, "before_bounds", _BOUNDS_SPEC),
                (self.factor != 0.0, "residual", matrix),
            )
        )
        return [("x", matrix), *((name, spec) for used, name, spec in optional if used)]

    def entering(self, args: dict[str, Buffer], i: Expr, j: Expr) -> Expr:
        """A value that is normed."""
        value = clipped(args["x"][i, j], args.get("after_bounds"), RESULT)
        return clamped(value + args["bias"][j] if self.biased else value, self.limit)

    def leaving(self, args: dict[str, Buffer], normed: Expr, i: Expr, j: Expr) -> Expr:
        """A value of the result, from the normed one without its weight."""
        value = normed * args["w"][j] if self.weighted else normed
        value = clipped(silu(value) if self.silu else value, args.get("before_bounds"), INPUT)
        if self.factor:
            value = args["residual"][i, j] + value * f32(self.factor)
        return value.astype(self.out_dtype)

    def definition(self) -> tirx.PrimFunc:
        rows = symbolic_rows(None)
        args = {name: te.placeholder(*spec, name=name) for name, spec in self.arguments(rows)}
        shape = (rows, self.width)
        x = te.compute(shape, lambda i, j: self.entering(args, i, j), name="entering")
        inverse = inverse_rms(x, rows, self.width, self.eps, "x")
        y = te.compute(shape, lambda i, j: self.leaving(args, x[i, j] * inverse[i], i, j), name="y")
        return te_prim_func([*args.values(), y])


@dataclass(frozen=True)
class RelativeAttention(_Bounded):
    """Attention of each row to itself and the `context - 1` rows before it, scores by distance.

    ``score = cap * tanh((q . k + q . relative[distance]) / cap)``, with q times ``head_dim^-0.5 /
    ln 2 * softplus(scale)`` and k times ``ln(1 + e) / ln 2``; the weighted mean of v. All of it in
    float32. Arguments: q, k, v (rows, heads * head_dim) f32; relative (context, heads * head_dim)
    f32; scale (head_dim,) f32; with `clips` the bounds of the matmuls of q, k, v, and of the one
    that the result goes to. Result: as q.

    References
    ----------
    transformers 5.24.0, `Gemma4AudioAttention`, whose chunks are a layout.
    """

    kind: ClassVar[str] = "relative_attention"
    heads: int
    head_dim: int
    context: int
    cap: float
    clips: bool = False

    @property
    def width(self) -> int:
        """Columns of q."""
        return self.heads * self.head_dim

    def tolerance(self, result: str) -> float:
        return ATTENTION_F32

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        """Names, shapes and dtypes of the arguments."""
        bounds = ("q_bounds", "k_bounds", "v_bounds", "post_bounds") if self.clips else ()
        return [
            *((name, ((rows, self.width), "float32")) for name in ("q", "k", "v")),
            ("relative", ((self.context, self.width), "float32")),
            ("scale", ((self.head_dim,), "float32")),
            *((name, _BOUNDS_SPEC) for name in bounds),
        ]

    def query(self, args: dict[str, Buffer], i: Index, h: Expr, d: Expr) -> Expr:
        """A channel of q as scores take it."""
        factor = f32(self.head_dim**-0.5 / math.log(2.0)) * softplus(args["scale"][d])
        value = args["q"][i, h * self.head_dim + d]
        return clipped(value, args.get("q_bounds"), RESULT) * factor

    def key(self, args: dict[str, Buffer], i: Index, h: Expr, d: Expr, distance: Expr) -> Expr:
        """A channel of the key at a distance, and of that distance."""
        channel = h * self.head_dim + d
        value = clipped(args["k"][i, channel], args.get("k_bounds"), RESULT)
        factor = f32(math.log(1.0 + math.e) / math.log(2.0))
        return value * factor + args["relative"][distance, channel]

    def result(self, args: dict[str, Buffer], mean: Expr) -> Expr:
        """A channel of the result."""
        return clipped(mean, args.get("post_bounds"), INPUT)

    def definition(self) -> tirx.PrimFunc:
        rows, dim = symbolic_rows(None), self.head_dim
        args = {name: te.placeholder(*spec, name=name) for name, spec in self.arguments(rows)}

        def before(i: Expr, t: Expr) -> Expr:
            return tirx.max(i32(i) - i32(t), i32(0))

        q = te.compute(
            (rows, self.heads, dim), lambda i, h, d: self.query(args, i, h, d), name="scaled"
        )
        d = te.reduce_axis((0, dim), name="d")
        shape = (rows, self.heads, self.context)
        sums = te.compute(
            shape,
            lambda i, h, t: te.sum(q[i, h, d] * self.key(args, before(i, t), h, d, t), axis=d),
            name="sums",
        )
        scores = te.compute(
            shape,
            lambda i, h, t: tirx.Select(
                i32(i) >= i32(t), softcap(sums[i, h, t], self.cap), f32(LOWEST)
            ),
            name="scores",
        )
        t1 = te.reduce_axis((0, self.context), name="t1")
        top = te.compute(shape[:2], lambda i, h: te.max(scores[i, h, t1], axis=t1), name="top")
        weights = te.compute(
            shape, lambda i, h, t: tirx.exp(scores[i, h, t] - top[i, h]), name="weights"
        )
        t2 = te.reduce_axis((0, self.context), name="t2")
        total = te.compute(shape[:2], lambda i, h: te.sum(weights[i, h, t2], axis=t2), name="total")
        t3 = te.reduce_axis((0, self.context), name="t3")
        v, bounds = args["v"], args.get("v_bounds")
        means = te.compute(
            (rows, self.width),
            lambda i, j: te.sum(
                weights[i, j // dim, t3] * clipped(v[before(i, t3), j], bounds, RESULT), axis=t3
            ),
            name="means",
        )
        y = te.compute(
            (rows, self.width),
            lambda i, j: self.result(args, means[i, j] / total[i, j // dim]),
            name="y",
        )
        return te_prim_func([*args.values(), y])

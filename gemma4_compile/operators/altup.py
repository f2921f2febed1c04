"""Several residual streams (AltUp).

The streams of a row lie one after the other: (rows, streams * width) float32. A layer runs on one
of them, the active one: the others are predicted before it and corrected after it. All vectors of a
layer are rows of one tensor, which each of its launches binds once.

References
----------
transformers 5.24.0, models/gemma3n/modeling_gemma3n.py; AltUp: arXiv 2301.13310.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.math import f32, tanh
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Expr, Index

VECTORS = 8
"""Vectors of a layer, rows of one tensor (VECTORS, width) in this order."""
(
    INPUT_NORM,
    ATTENTION_NORM,
    LAUREL_NORM,
    FEEDFORWARD_NORM,
    BRANCH_NORM,
    INJECTED_NORM,
    ROUTER_NORM,
    CORRECTED_SCALE,
) = range(VECTORS)
LEAST_MEAN_SQUARE = 1e-5
"""Of a projected stream, by which it is scaled to the size of the first."""


def inverse_rms_of(
    value: Callable[[Expr, Expr], Expr], rows: Index, width: int, eps: float, name: str
) -> te.Tensor:
    """``1 / sqrt(mean(value^2) + eps)`` of each row: (rows,) float32."""
    k = te.reduce_axis((0, width), name="k")
    squares = te.compute(
        (rows,), lambda i: te.sum(value(i, k) * value(i, k), axis=k), name=f"{name}_squares"
    )
    return te.compute(
        (rows,), lambda i: tirx.rsqrt(squares[i] / f32(width) + f32(eps)), name=f"{name}_rsqrt"
    )


def mean_square(
    value: Callable[[Expr, Expr], Expr], rows: Index, width: int, name: str
) -> te.Tensor:
    """``mean(value^2)`` of each row: (rows,) float32."""
    k = te.reduce_axis((0, width), name="k")
    squares = te.compute(
        (rows,), lambda i: te.sum(value(i, k) * value(i, k), axis=k), name=f"{name}_squares"
    )
    return te.compute((rows,), lambda i: squares[i] / f32(width), name=f"{name}_mean")


@dataclass(frozen=True)
class Streams(Operator):
    """An operator on all streams of a row.

    Attributes
    ----------
    streams, width : of a row, `streams` times `width` channels
    """

    rows: Rows
    streams: int
    width: int

    def all_streams(self, rows: Index, name: str) -> te.Tensor:
        """All streams of the rows, as an argument."""
        return te.placeholder((rows, self.streams * self.width), "float32", name=name)

    def one_stream(self, rows: Index, name: str) -> te.Tensor:
        """One vector of the rows, as an argument."""
        return te.placeholder((rows, self.width), "float32", name=name)

    def layer_vectors(self, name: str = "vectors") -> te.Tensor:
        """The vectors of a layer, as an argument."""
        return te.placeholder((VECTORS, self.width), "float32", name=name)


@dataclass(frozen=True)
class Routed(Streams):
    """An operator whose coefficients hang on one stream.

    Attributes
    ----------
    active : index of the stream that the layer runs on
    eps : of its norms
    """

    active: int
    eps: float

    @property
    def coefficients(self) -> int:
        """Rows of the tensor with the coefficients of prediction, and behind them of correction."""
        return self.streams * self.streams + self.streams

    def routing_arguments(self) -> tuple[te.Tensor, te.Tensor]:
        """The router (streams, width) and the coefficients (.., streams), as arguments."""
        router = te.placeholder((self.streams, self.width), "float32", name="router")
        coefs = te.placeholder((self.coefficients, self.streams), "float32", name="coefs")
        return router, coefs

    def mixed(
        self,
        value: Callable[[Expr, Expr], Expr],
        rows: Index,
        vectors: te.Tensor,
        routing: tuple[te.Tensor, te.Tensor],
        first: int,
        count: int,
    ) -> te.Tensor:
        """Rows [first, first + count) of the coefficients times the routed stream: (rows, count).

        ``tanh(router (norm(value; w_router) / width))`` is what they are multiplied by.
        """
        router, coefs = routing
        inverse = inverse_rms_of(value, rows, self.width, self.eps, "routed")
        k = te.reduce_axis((0, self.width), name="k")
        dots = te.compute(
            (rows, self.streams),
            lambda i, s: te.sum(value(i, k) * vectors[ROUTER_NORM, k] * router[s, k], axis=k),
            name="dots",
        )
        modalities = te.compute(
            (rows, self.streams),
            lambda i, s: tanh(dots[i, s] * inverse[i] / f32(self.width)),
            name="modalities",
        )
        m = te.reduce_axis((0, self.streams), name="m")
        return te.compute(
            (rows, count),
            lambda i, c: te.sum(coefs[first + c, m] * modalities[i, m], axis=m),
            name="mixed",
        )


@dataclass(frozen=True)
class AltupExpand(Streams):
    """The streams of the first layer: the embedding, and projections of it at its size.

    ``[x, p_1 * rms(x) / rms(p_1), ...]``. Arguments: x (rows, width) f32, p (rows, (streams - 1) *
    width) f32. Result: (rows, streams * width) f32.
    """

    kind: ClassVar[str] = "altup_expand"

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        x = self.one_stream(rows, "x")
        p = te.placeholder((rows, (self.streams - 1) * width), "float32", name="p")
        size = mean_square(lambda i, k: x[i, k], rows, width, "x")
        k = te.reduce_axis((0, width), name="k")

        def square(i: Expr, s: Expr) -> Expr:
            return te.sum(p[i, s * width + k] * p[i, s * width + k], axis=k)

        squares = te.compute((rows, self.streams - 1), square, name="p_squares")
        scale = te.compute(
            (rows, self.streams - 1),
            lambda i, s: size_ratio(size[i], squares[i, s] / f32(width)),
            name="scale",
        )

        def stream(i: Expr, j: Expr) -> Expr:
            other = tirx.max(j - width, 0)
            projected = p[i, other] * scale[i, other // width]
            return tirx.if_then_else(j < width, x[i, tirx.min(j, width - 1)], projected)

        out = te.compute((rows, self.streams * width), stream, name="out")
        return te_prim_func([x, p, out])


def size_ratio(target: Expr, found: Expr) -> Expr:
    """What a vector of mean square `found` is scaled by to have that of `target`."""
    return tirx.sqrt(target) / tirx.sqrt(tirx.max(found, f32(LEAST_MEAN_SQUARE)))


@dataclass(frozen=True)
class AltupPredict(Routed):
    """All streams as the layer finds them, and the norm of the active one.

    ``h_i = x_i + sum_s x_s c[i, s]`` with coefficients by the active x, and ``norm(h_active)``.
    With `injects` x is `AltupInject` of the first three arguments.

    Arguments: x (rows, streams * width) f32, or injected (rows, width) f32, corrected and the
    vectors of the layer before; vectors; router (streams, width) f32; coefs (.., streams) f32.
    Results: h (rows, streams * width) f32, hidden (rows, width) in `next_dtype`.
    """

    kind: ClassVar[str] = "altup_predict"
    next_dtype: str
    injects: bool = False

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        if self.injects:
            before, x = injection(self, rows, "last_vectors")
        else:
            x = self.all_streams(rows, "x")
            before = [x]
        vectors, routing = self.layer_vectors(), self.routing_arguments()
        begin, count = self.active * width, self.streams**2
        coefs = self.mixed(lambda i, k: x[i, begin + k], rows, vectors, routing, 0, count)

        def predicted(i: Expr, j: Expr) -> Expr:
            total, stream, channel = x[i, j], j // width, j % width
            for s in range(self.streams):
                total = total + x[i, s * width + channel] * coefs[i, stream * self.streams + s]
            return total

        h = te.compute((rows, self.streams * width), predicted, name="h")
        inverse = inverse_rms_of(lambda i, k: h[i, begin + k], rows, width, self.eps, "h")
        hidden = te.compute(
            (rows, width),
            lambda i, j: (h[i, begin + j] * inverse[i] * vectors[INPUT_NORM, j]).astype(
                self.next_dtype
            ),
            name="hidden",
        )
        return te_prim_func([*before, vectors, *routing, h, hidden])


@dataclass(frozen=True)
class AltupCorrect(Routed):
    """The end of the MLP's branch, and all streams corrected by what the layer did.

    ``a = r + norm(fed)``, ``y_i = h_i + (a - h_active) (1 + c[i])`` with coefficients by a, and
    ``first = y_active * w_scale`` (with `scaled`), which the per-layer input is gated by.

    Arguments: fed, r (rows, width) f32, h (rows, streams * width) f32, vectors, router, coefs.
    Results: y (rows, streams * width) f32, first (rows, width) f32.
    """

    kind: ClassVar[str] = "altup_correct"
    scaled: bool

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        fed, r = self.one_stream(rows, "fed"), self.one_stream(rows, "r")
        h, vectors, routing = (
            self.all_streams(rows, "h"),
            self.layer_vectors(),
            self.routing_arguments(),
        )
        inverse = inverse_rms_of(lambda i, k: fed[i, k], rows, width, self.eps, "fed")
        activated = te.compute(
            (rows, width),
            lambda i, j: r[i, j] + fed[i, j] * inverse[i] * vectors[BRANCH_NORM, j],
            name="activated",
        )
        coefs = self.mixed(
            lambda i, k: activated[i, k], rows, vectors, routing, self.streams**2, self.streams
        )
        begin = self.active * width

        def corrected(i: Expr, j: Expr) -> Expr:
            innovation = activated[i, j % width] - h[i, begin + j % width]
            return h[i, j] + innovation * (coefs[i, j // width] + f32(1.0))

        y = te.compute((rows, self.streams * width), corrected, name="y")

        def scale(i: Expr, j: Expr) -> Expr:
            value = y[i, begin + j]
            return value * vectors[CORRECTED_SCALE, j] if self.scaled else value

        first = te.compute((rows, width), scale, name="first")
        return te_prim_func([fed, r, h, vectors, *routing, y, first])


def injection(
    operator: Routed | AltupInject, rows: Index, vectors_name: str = "vectors"
) -> tuple[list[te.Tensor], te.Tensor]:
    """Arguments and result of `AltupInject`."""
    width = operator.width
    injected = operator.one_stream(rows, "injected")
    y = operator.all_streams(rows, "y")
    vectors = operator.layer_vectors(vectors_name)
    inverse = inverse_rms_of(lambda i, k: injected[i, k], rows, width, operator.eps, "injected")

    def add(i: Expr, j: Expr) -> Expr:
        normed = injected[i, j % width] * inverse[i] * vectors[INJECTED_NORM, j % width]
        return y[i, j] + tirx.if_then_else(j < width, f32(0.0), normed)

    out = te.compute((rows, operator.streams * width), add, name="x")
    return [injected, y, vectors], out


@dataclass(frozen=True)
class AltupInject(Streams):
    """The per-layer input, normed, on every stream but the first.

    Arguments: injected (rows, width) f32, y (rows, streams * width) f32, vectors. Result: x (rows,
    streams * width) f32, or with `apart` each of its streams (rows, width) f32.
    """

    kind: ClassVar[str] = "altup_inject"
    eps: float
    apart: bool = False

    def definition(self) -> tirx.PrimFunc:
        args, out = injection(self, self.rows.extent())
        return te_prim_func([*args, *(streams_of(self, out) if self.apart else [out])])


def streams_of(operator: Streams, x: te.Tensor) -> list[te.Tensor]:
    """Each stream of x by itself."""

    def stream(begin: int, name: str) -> te.Tensor:
        shape = x.shape[0], operator.width
        return te.compute(shape, lambda i, j: x[i, begin + j], name=name)

    return [stream(s * operator.width, f"stream{s}") for s in range(operator.streams)]


@dataclass(frozen=True)
class SplitStreams(Streams):
    """Each stream by itself: x (rows, streams * width) f32 -> `streams` times (rows, width) f32."""

    kind: ClassVar[str] = "split_streams"

    def definition(self) -> tirx.PrimFunc:
        x = self.all_streams(self.rows.extent(), "x")
        return te_prim_func([x, *streams_of(self, x)])


@dataclass(frozen=True)
class TakeStream(Streams):
    """One stream: x (rows, streams * width) f32 -> (rows, width) f32."""

    kind: ClassVar[str] = "take_stream"
    index: int

    def definition(self) -> tirx.PrimFunc:
        rows, begin = self.rows.extent(), self.index * self.width
        x = self.all_streams(rows, "x")
        y = te.compute((rows, self.width), lambda i, j: x[i, begin + j], name="y")
        return te_prim_func([x, y])


@dataclass(frozen=True)
class AltupCollapse(Streams):
    """The mean of the first stream and of the projected others at its size.

    Arguments: x (rows, streams * width) f32, or with `apart` its first stream (rows, width) f32,
    and the projection (rows, width) f32 of each other one. Result: (rows, width) f32.

    Libraries say `apart` since the last injection writes streams so; those of before are checked
    without it.
    """

    kind: ClassVar[str] = "altup_collapse"
    apart: bool = False

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        x = (self.one_stream if self.apart else self.all_streams)(rows, "x")
        projected = [self.one_stream(rows, f"p{s}") for s in range(1, self.streams)]
        size = mean_square(lambda i, k: x[i, k], rows, width, "x")
        scales = [self._scale(size, p) for p in projected]

        def mean(i: Expr, j: Expr) -> Expr:
            total = x[i, j]
            for p, scale in zip(projected, scales, strict=True):
                total = total + p[i, j] * scale[i]
            return total / f32(self.streams)

        out = te.compute((rows, width), mean, name="out")
        return te_prim_func([x, *projected, out])

    def _scale(self, size: te.Tensor, projected: te.Tensor) -> te.Tensor:
        """What each row of a projection is scaled by: (rows,) float32."""
        rows, width = projected.shape[0], self.width
        found = mean_square(lambda i, k: projected[i, k], rows, width, projected.op.name)
        return te.compute((rows,), lambda i: size_ratio(size[i], found[i]), name="scale")

"""Mixture of experts without the experts: who is chosen, in which order rows go, what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import (
    Operator,
    TensorSpec,
    symbolic_rows,
    te_prim_func,
)
from gemma4_compile.operators.examples import Sizes, chosen_experts
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.norms import combined_experts, inverse_rms, residual_sum
from gemma4_compile.operators.rows import ONE, One, Rows
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

VECTORS = 4  # of a layer with experts between attention and its matmuls, in one argument
BRANCH_NORM, DENSE_NORM, SCALE, EXPERT_NORM = range(VECTORS)
EXPERT_TILE = 32  # rows of a tile of one expert; the height of the matmul kernel's tile


@dataclass(frozen=True)
class Router(Operator):
    """Choose the experts of each position, and norm the position for them.

    ``s = Wr (norm(x) * scale * factor)``, ``p = softmax(s)``, the `top_k` largest, divided by their
    sum, times the expert's own scale. Of equal scores the lower index wins; the softmax's sum over
    all experts cancels.

    Arguments: x (rows, width) f32, the residual before any norm; vectors (4, width) f32, of which
    `SCALE` is the router's and `EXPERT_NORM` that of the experts' norm; projection (experts, width)
    weight_dtype; expert_scale (experts,) f32. Results: ids (rows, top_k) int32; weights (rows,
    top_k) f32; ``norm(x; w)`` (rows, width) out_dtype.

    References
    ----------
    transformers 5.24.0, `Gemma4TextRouter` and `Gemma4TextDecoderLayer.forward`.
    """

    kind: ClassVar[str] = "router"
    rows: Rows
    width: int
    experts: int
    top_k: int
    eps: float
    factor: float
    weight_dtype: str
    out_dtype: str

    def definition(self) -> tirx.PrimFunc:
        rows, width, experts = self.rows.extent(), self.width, self.experts
        with function(scheduled=False) as build:
            x = build.arg("x", (rows, width), "float32")
            vectors = build.arg("vectors", (VECTORS, width), "float32")
            projection = build.arg("projection", (experts, width), self.weight_dtype)
            expert_scale = build.arg("expert_scale", (experts,), "float32")
            ids = build.arg("ids", (rows, self.top_k), "int32")
            weights = build.arg("weights", (rows, self.top_k), "float32")
            hidden = build.arg("hidden", (rows, width), self.out_dtype)
            with T.serial(0, rows) as i:
                squares = LocalVar("float32", f32(0.0))
                with T.serial(0, width) as j:
                    squares.add(x[i, j] * x[i, j])
                inverse = bind(tirx.rsqrt(squares.value / f32(width) + f32(self.eps)))
                with T.serial(0, width) as j:
                    normed = x[i, j] * inverse * vectors[EXPERT_NORM, j]
                    store(hidden, normed.astype(self.out_dtype), i, j)
                scores = T.alloc_buffer((experts,), "float32", scope="local")
                with T.serial(0, experts) as e:
                    score = LocalVar("float32", f32(0.0))
                    with T.serial(0, width) as j:
                        normed = x[i, j] * inverse * vectors[SCALE, j] * f32(self.factor)
                        score.add(normed * as_f32(projection[e, j]))
                    store(scores, score.value, e)
                choose_experts(self.experts, self.top_k, scores, expert_scale, ids, weights, i)
        return build.result


def choose_experts(
    experts: int,
    top_k: int,
    scores: Buffer,
    expert_scale: Buffer,
    ids: Buffer,
    weights: Buffer,
    i: Index,
) -> None:
    """`top_k` times the highest score that is left, and their softmax; changes `scores`."""
    chosen = LocalVar("float32", f32(0.0))
    highest = LocalVar("float32", scores[0])
    with T.serial(0, experts) as e:
        highest.set(tirx.max(highest.value, scores[e]))
    with T.serial(0, top_k) as k:
        best = LocalVar("int32", i32(0))
        with T.serial(1, experts) as e, when(scores[e] > scores[best.value]):
            best.set(i32(e))
        store(ids, best.value, i, k)
        store(weights, tirx.exp(scores[best.value] - highest.value), i, k)
        chosen.add(weights[i, k])
        store(scores, f32(LOWEST), best.value)
    with T.serial(0, top_k) as k:
        store(weights, weights[i, k] / chosen.value * expert_scale[ids[i, k]], i, k)


def routed_begin(experts: int) -> int:
    """Return where the experts' input begins after the scores: a multiple of 4, for wide loads."""
    return -(-experts // 4) * 4


def routed_width(experts: int, width: int) -> int:
    """Columns of the result of `RouterScores`."""
    return routed_begin(experts) + width


def router_scores(
    x: te.Tensor, vectors: te.Tensor, projection: te.Tensor, rows: Index, eps: float, factor: float
) -> tuple[te.Tensor, te.Tensor]:
    """Return 1 / rms of each row of x (rows, width), and the scores (rows, experts)."""
    width, experts = int(x.shape[1]), int(projection.shape[0])
    inverse = inverse_rms(x, rows, width, eps, "router")
    j = te.reduce_axis((0, width), name="j")

    def term(i: Expr, e: Expr) -> Expr:
        normed = x[i, j] * inverse[i] * vectors[SCALE, j] * f32(factor)
        return te.sum(normed * as_f32(projection[e, j]), axis=j)

    return inverse, te.compute((rows, experts), term, name="scores")


def routed_vector(
    x: te.Tensor, vectors: te.Tensor, projection: te.Tensor, eps: float, factor: float
) -> te.Tensor:
    """Return what `RouterScores` makes of x (1, width)."""
    width, experts = int(x.shape[1]), int(projection.shape[0])
    inverse, scores = router_scores(x, vectors, projection, 1, eps, factor)
    begin = routed_begin(experts)

    def column(i: Expr, c: Expr) -> Expr:
        k = tirx.max(c - begin, 0)
        hidden = x[i, k] * inverse[i] * vectors[EXPERT_NORM, k]
        score = scores[i, tirx.min(c, experts - 1)]
        after = tirx.Select(c < begin, f32(0.0), hidden)
        return tirx.Select(c < experts, score, after)

    return te.compute((1, begin + width), column, name="routed")


@dataclass(frozen=True)
class RouterScores(Operator):
    """The first half of `Router`: as many blocks as experts, and rows, read the projection.

    Arguments: x (rows, width) f32; vectors (4, width) f32; projection (experts, width)
    weight_dtype. Result for one position: (1, `routed_width`) f32, the scores of the experts and,
    from `routed_begin` on, ``norm(x; w)``: one buffer, as kernels that have this next to their own
    work bind no more. Results for a few: scores (rows, experts) f32; ``norm(x; w)`` (rows, width)
    hidden_dtype, or nothing where that is None: who rounds the experts' input has normed it.
    """

    kind: ClassVar[str] = "router_scores"
    width: int
    experts: int
    eps: float
    factor: float
    weight_dtype: str
    hidden_dtype: str | None = None
    rows: Rows = ONE

    @property
    def name(self) -> str:
        return f"{self.rows.prefix}{self.kind}"

    @property
    def variant(self) -> str:
        return self.name

    def definition(self) -> tirx.PrimFunc:
        rows, width, dtype = self.rows.extent(), self.width, self.hidden_dtype
        x = te.placeholder((rows, width), "float32", name="x")
        vectors = te.placeholder((VECTORS, width), "float32", name="vectors")
        projection = te.placeholder((self.experts, width), self.weight_dtype, name="projection")
        args = x, vectors, projection
        if isinstance(self.rows, One):
            return te_prim_func([*args, routed_vector(*args, self.eps, self.factor)])
        inverse, scores = router_scores(*args, rows, self.eps, self.factor)
        if dtype is None:
            return te_prim_func([*args, scores])

        def normed(i: Expr, k: Expr) -> Expr:
            return (x[i, k] * inverse[i] * vectors[EXPERT_NORM, k]).astype(dtype)

        return te_prim_func([*args, scores, te.compute((rows, width), normed, name="hidden")])


@dataclass(frozen=True)
class RoutedNorm:
    """Norms between attention and the dense MLP of a layer with experts, and the router.

    ``r' = r + norm(b; v[BRANCH_NORM])``, ``x = norm(r'; v[DENSE_NORM])``, and `RouterScores` of r'.
    Arguments: b, r (1, width) f32; v (4, width) f32; projection (experts, width) weight_dtype.
    """

    width: int
    eps: float
    experts: int
    factor: float
    weight_dtype: str

    @property
    def result_spec(self) -> TensorSpec:
        """Shape and dtype of the result of `RouterScores`."""
        return (1, routed_width(self.experts, self.width)), "float32"

    def definition(self) -> tuple[list[te.Tensor], te.Tensor, te.Tensor, te.Tensor]:
        """Arguments, r', x, and the result of `RouterScores`."""
        shape, width = (1, self.width), self.width
        branch = te.placeholder(shape, "float32", name="branch")
        residual = te.placeholder(shape, "float32", name="residual")
        vectors = te.placeholder((VECTORS, width), "float32", name="vectors")
        projection = te.placeholder((self.experts, width), self.weight_dtype, name="projection")
        out = residual_sum(branch, residual, lambda j: vectors[BRANCH_NORM, j], None, self.eps)
        inverse_out = inverse_rms(out, 1, width, self.eps, "out")
        x = te.compute(
            shape, lambda i, j: out[i, j] * inverse_out[i] * vectors[DENSE_NORM, j], name="x"
        )
        routed = routed_vector(out, vectors, projection, self.eps, self.factor)
        return [branch, residual, vectors, projection], out, x, routed


@dataclass(frozen=True)
class TopKExperts(Operator):
    """The second half of `Router`.

    Arguments: the result of `RouterScores` that has the scores; expert_scale (experts,) f32.
    Results: ids (rows, top_k) int32; weights (rows, top_k) f32.
    """

    kind: ClassVar[str] = "top_k_experts"
    experts: int
    top_k: int
    width: int
    rows: Rows = ONE

    @property
    def name(self) -> str:
        return f"{self.rows.prefix}{self.kind}"

    @property
    def variant(self) -> str:
        return self.name

    @property
    def columns(self) -> int:
        """Of the scores, with what comes after them."""
        is_one = isinstance(self.rows, One)
        return routed_width(self.experts, self.width) if is_one else self.experts

    def definition(self) -> tirx.PrimFunc:
        rows = self.rows.extent()
        with function(scheduled=False) as build:
            given = build.arg("scores", (rows, self.columns), "float32")
            expert_scale = build.arg("expert_scale", (self.experts,), "float32")
            ids = build.arg("ids", (rows, self.top_k), "int32")
            weights = build.arg("weights", (rows, self.top_k), "float32")
            with T.serial(0, rows) as i:
                scores = T.alloc_buffer((self.experts,), "float32", scope="local")
                with T.serial(0, self.experts) as e:
                    store(scores, given[i, e], e)
                choose_experts(self.experts, self.top_k, scores, expert_scale, ids, weights, i)
        return build.result


def chosen_ids(scores: te.Tensor, experts: int, top_k: int) -> te.Tensor:
    """Ids (1, top_k) int32 of `TopKExperts`: an expert's place is the number before it."""
    other = te.reduce_axis((0, experts), name="other")

    def is_before(e: Expr) -> Expr:
        tied = tirx.all(scores[0, other] == scores[0, e], other < e)
        return tirx.Select(tirx.any(scores[0, other] > scores[0, e], tied), i32(1), i32(0))

    places = te.compute((experts,), lambda e: te.sum(is_before(e), axis=other), name="places")
    own = te.reduce_axis((0, experts), name="own")
    return te.compute(
        (1, top_k),
        lambda i, k: te.sum(tirx.Select(places[own] == k, i32(own), i32(0)), axis=own),
        name="ids",
    )


def chosen_weights(ids: te.Tensor, scores: te.Tensor, expert_scale: te.Tensor) -> te.Tensor:
    """Weights (1, top_k) f32 of `TopKExperts` for the experts that it chose."""
    top_k = int(ids.shape[1])
    m, n = te.reduce_axis((0, top_k), name="m"), te.reduce_axis((0, top_k), name="n")
    highest = te.compute((1,), lambda i: te.max(scores[0, ids[i, m]], axis=m), name="highest")
    shares = te.compute(
        (1, top_k), lambda i, k: tirx.exp(scores[0, ids[i, k]] - highest[0]), name="shares"
    )
    total = te.compute((1,), lambda i: te.sum(shares[i, n], axis=n), name="total")
    return te.compute(
        (1, top_k), lambda i, k: shares[i, k] / total[0] * expert_scale[ids[i, k]], name="chosen"
    )


@dataclass(frozen=True)
class PermuteByExpert(Operator):
    """Order the (position, slot) pairs of a chunk by expert, and cut each expert's run into tiles.

    Arguments: ids (rows, top_k) int32. Results: order (rows * top_k,) int32, the flat pair index
    ``position * top_k + slot`` by ascending expert, then by index; tiles (count, 3) int32: expert,
    first row and end row in `order`; tiles that are not needed have first row = end row.
    """

    kind: ClassVar[str] = "permute_by_expert"
    experts: int
    top_k: int
    tile: int

    def tile_count(self, pairs: Index) -> Index:
        """An upper bound on the tiles: full ones, and one that is not full for each expert."""
        return tirx.floordiv(pairs, self.tile) + self.experts

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return chosen_experts(self.experts, self.top_k, shape[0]) if name == "ids" else None

    def definition(self) -> tirx.PrimFunc:
        rows = symbolic_rows(None)
        with function(scheduled=False) as build:
            ids = build.arg("ids", (rows, self.top_k), "int32")
            order = build.arg("order", (rows * self.top_k,), "int32")
            tiles = build.arg("tiles", (self.tile_count(rows * self.top_k), 3), "int32")
            written, tile = LocalVar("int32", i32(0)), LocalVar("int32", i32(0))
            with T.serial(0, self.experts) as e:
                first = bind(written.value)
                with (
                    T.serial(0, rows) as i,
                    T.serial(0, self.top_k) as k,
                    when(ids[i, k] == i32(e)),
                ):
                    store(order, i32(i) * self.top_k + i32(k), written.value)
                    written.add(i32(1))
                with T.serial(
                    0, tirx.floordiv(written.value - first + (self.tile - 1), i32(self.tile))
                ) as t:
                    begin = bind(first + t * self.tile)
                    store(tiles, i32(e), tile.value, 0)
                    store(tiles, begin, tile.value, 1)
                    store(tiles, tirx.min(begin + self.tile, written.value), tile.value, 2)
                    tile.add(i32(1))
            with (
                T.serial(tile.value, i32(self.tile_count(rows * self.top_k))) as t,
                T.serial(0, 3) as c,
            ):
                store(tiles, i32(0), t, c)
        return build.result


@dataclass(frozen=True)
class CombineExperts(Operator):
    """``y[i] = sum_k weights[i, k] * outputs[i * top_k + k]``.

    Arguments: outputs (rows * top_k, width) f32; weights (rows, top_k) f32. Result: (rows, width)
    f32.
    """

    kind: ClassVar[str] = "combine_experts"
    rows: Rows
    top_k: int
    width: int

    def definition(self) -> tirx.PrimFunc:
        args, y = combined_experts(self.rows.extent(), self.top_k, self.width)
        return te_prim_func([*args, y])

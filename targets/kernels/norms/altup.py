"""Kernels of several residual streams: one thread block a row.

Each thread owns the same channels of every stream, so that what a block exchanges is sums alone.
Definitions: gemma4_compile/operators/altup.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.altup import (
    ATTENTION_NORM,
    BRANCH_NORM,
    CORRECTED_SCALE,
    FEEDFORWARD_NORM,
    INJECTED_NORM,
    INPUT_NORM,
    LAUREL_NORM,
    ROUTER_NORM,
    VECTORS,
    AltupCollapse,
    AltupCorrect,
    AltupExpand,
    AltupInject,
    AltupPredict,
    Routed,
    SplitStreams,
    Streams,
    TakeStream,
    size_ratio,
)
from gemma4_compile.operators.laurel import HALF_SUM, LaurelResidual
from gemma4_compile.operators.math import f32, tanh
from gemma4_compile.operators.tir import (
    FunctionBuilder,
    bind,
    function,
    i32,
    materialize,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockSums,
    inverse_rms,
    launch,
    row_threads,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.spec import TargetSpec


@dataclass(frozen=True)
class _Row:
    """A block and the row that it works on.

    Attributes
    ----------
    number : of the row
    share : a thread's channels of one stream
    sums : over the block
    """

    operator: Streams
    number: Expr
    share: RowSlice
    sums: BlockSums

    def stream(self, buffer: Buffer, index: int) -> list[Expr]:
        """The share of a stream of (rows, streams * width)."""
        return self.share.load_from(buffer, index * self.operator.width, self.number)

    def streams(self, buffer: Buffer) -> list[list[Expr]]:
        """The shares of all streams."""
        return [self.stream(buffer, index) for index in range(self.operator.streams)]

    def one(self, buffer: Buffer) -> list[Expr]:
        """The share of (rows, width)."""
        return self.share.load(buffer, self.number)

    def put(self, buffer: Buffer, values: Sequence[Expr], index: int = 0) -> None:
        """Write the share of a stream."""
        self.share.store_from(buffer, values, index * self.operator.width, self.number)

    def squares(self, *shares: Sequence[Expr]) -> list[Expr]:
        """The sum of squares of each of some vectors."""
        return self.sums([self.share.dot(one, one) for one in shares])

    def scaled(self, values: Sequence[Expr], factor: Expr) -> list[Expr]:
        """A vector times a number."""
        splat = self.share.splat(factor)
        return self.share.map(lambda a: a * splat, values)

    def normed(
        self, values: Sequence[Expr], squares: Expr, weight: Sequence[Expr], eps: float
    ) -> list[Expr]:
        """A vector's norm, by its sum of squares."""
        inverse = self.share.splat(inverse_rms(squares, self.operator.width, eps))
        return self.share.map(lambda a, w: a * inverse * w, values, weight)


@contextmanager
def _row(operator: Streams, rows: Index, spec: TargetSpec) -> Iterator[_Row]:
    """Launch a block for each row."""
    threads = row_threads(operator.width, spec.max_threads_per_block)
    with launch(threads, rows) as (number, _, thread):
        block = Block(thread, threads, spec.simd_width)
        yield _Row(operator, number, RowSlice(block, operator.width), BlockSums(block))


@dataclass(frozen=True)
class _Arguments:
    """Adds arguments to a kernel, by the shapes that operators on streams have."""

    build: FunctionBuilder
    operator: Streams
    rows: Index

    def streams(self, name: str, count: int | None = None) -> Buffer:
        """All streams, or so many."""
        count = self.operator.streams if count is None else count
        return self.build.arg(name, (self.rows, count * self.operator.width), "float32")

    def one(self, name: str, dtype: str = "float32") -> Buffer:
        """One stream."""
        return self.build.arg(name, (self.rows, self.operator.width), dtype)

    def apart(self) -> list[Buffer]:
        """Each stream by itself."""
        return [self.one(f"stream{index}") for index in range(self.operator.streams)]

    def vectors(self, name: str = "vectors") -> Buffer:
        """The vectors of a layer."""
        return self.build.arg(name, (VECTORS, self.operator.width), "float32")

    def routing(self, operator: Routed) -> tuple[Buffer, Buffer]:
        """Router and coefficients."""
        router = self.build.arg("router", (operator.streams, operator.width), "float32")
        shape = (operator.coefficients, operator.streams)
        return router, self.build.arg("coefs", shape, "float32")


def _mixed(
    row: _Row,
    operator: Routed,
    values: Sequence[Expr],
    vectors: Buffer,
    routing: tuple[Buffer, Buffer],
    first: int,
    count: int,
) -> list[Expr]:
    """Coefficients of a row from the stream that is routed; see `Routed.mixed`."""
    router, coefs = routing
    share, width = row.share, operator.width
    weight = share.load(StackRow(vectors, ROUTER_NORM))
    weighed = share.map(lambda a, w: a * w, values, weight)
    routers = [share.load(router, index) for index in range(operator.streams)]
    squares, *dots = row.sums(
        [share.dot(values, values), *(share.dot(weighed, one) for one in routers)]
    )
    inverse = inverse_rms(squares, width, operator.eps)
    modalities = [materialize(tanh(dot * inverse / f32(width)), "float32") for dot in dots]
    found = []
    for index in range(first, first + count):
        total = coefs[index, 0] * modalities[0]
        for m, modality in enumerate(modalities[1:], 1):
            total = total + coefs[index, m] * modality
        found.append(materialize(total, "float32"))
    return found


def make_altup_expand(operator: AltupExpand, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Reference: `AltupExpand.definition`."""
    rows, width = operator.rows.extent(), operator.width
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        x, p = args.one("x"), args.streams("p", operator.streams - 1)
        out = args.streams("out")
        with _row(operator, rows, spec) as row:
            first = row.one(x)
            others = [row.stream(p, index) for index in range(operator.streams - 1)]
            size, *found = row.squares(first, *others)
            row.put(out, first)
            for index, (other, squares) in enumerate(zip(others, found, strict=True), 1):
                ratio = size_ratio(size / f32(width), squares / f32(width))
                row.put(out, row.scaled(other, materialize(ratio, "float32")), index)
    return build.result


def make_altup_predict(operator: AltupPredict, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Reference: `AltupPredict.definition`."""
    rows, count = operator.rows.extent(), operator.streams
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        injected = args.one("injected") if operator.injects else None
        x = args.streams("x")
        last_vectors = args.vectors("last_vectors") if operator.injects else None
        vectors, routing = args.vectors(), args.routing(operator)
        h, hidden = args.streams("h"), args.one("hidden", operator.next_dtype)
        with _row(operator, rows, spec) as row:
            share, values = row.share, row.streams(x)
            if injected is not None and last_vectors is not None:
                values = _injected(row, injected, values, last_vectors, operator.eps)
            weight = share.load(StackRow(vectors, INPUT_NORM))
            active = values[operator.active]
            coefs = _mixed(row, operator, active, vectors, routing, 0, count * count)
            predicted = []
            for index, total in enumerate(values):
                for other, value in enumerate(values):
                    factor = share.splat(coefs[index * count + other])
                    total = share.map(lambda t, v, f=factor: t + v * f, total, value)
                predicted.append(total)
                row.put(h, total, index)
            active = predicted[operator.active]
            (squares,) = row.squares(active)
            row.put(hidden, row.normed(active, squares, weight, operator.eps))
    return build.result


def make_laurel_residual(operator: LaurelResidual, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Reference: `LaurelResidual.definition`."""
    rows, eps = operator.rows.extent(), operator.eps
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        branches = [args.one("attended"), args.one("laurel")]
        h, vectors = args.streams("h"), args.vectors()
        r, hidden = args.one("r"), args.one("hidden", operator.next_dtype)
        with _row(operator, rows, spec) as row:
            share = row.share
            active = row.stream(h, operator.active)
            values = [active, *(row.one(branch) for branch in branches)]
            weights = [
                share.load(StackRow(vectors, number))
                for number in (INPUT_NORM, ATTENTION_NORM, LAUREL_NORM)
            ]
            after = share.load(StackRow(vectors, FEEDFORWARD_NORM))
            total = active
            for value, squares, weight in zip(values, row.squares(*values), weights, strict=True):
                normed = row.normed(value, squares, weight, eps)
                total = share.map(lambda a, b: a + b, total, normed)
            total = row.scaled(total, f32(HALF_SUM))
            row.put(r, total)
            (squares,) = row.squares(total)
            row.put(hidden, row.normed(total, squares, after, eps))
    return build.result


def make_altup_correct(operator: AltupCorrect, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Reference: `AltupCorrect.definition`."""
    rows, count = operator.rows.extent(), operator.streams
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        fed, r, h = args.one("fed"), args.one("r"), args.streams("h")
        vectors, routing = args.vectors(), args.routing(operator)
        y, first = args.streams("y"), args.one("first")
        with _row(operator, rows, spec) as row:
            share = row.share
            branch, residual, predicted = row.one(fed), row.one(r), row.streams(h)
            weight = share.load(StackRow(vectors, BRANCH_NORM))
            (squares,) = row.squares(branch)
            normed = row.normed(branch, squares, weight, operator.eps)
            activated = share.map(lambda a, b: a + b, residual, normed)
            coefs = _mixed(row, operator, activated, vectors, routing, count * count, count)
            innovation = share.map(lambda a, b: a - b, activated, predicted[operator.active])
            for index, value in enumerate(predicted):
                change = row.scaled(innovation, coefs[index] + f32(1.0))
                corrected = share.map(lambda a, b: a + b, value, change)
                row.put(y, corrected, index)
                if index == operator.active:
                    if operator.scaled:
                        scale = share.load(StackRow(vectors, CORRECTED_SCALE))
                        corrected = share.map(lambda a, b: a * b, corrected, scale)
                    row.put(first, corrected)
    return build.result


def _injected(
    row: _Row, injected: Buffer, values: list[list[Expr]], vectors: Buffer, eps: float
) -> list[list[Expr]]:
    """The streams with the per-layer input on all but the first."""
    share, value = row.share, row.one(injected)
    weight = share.load(StackRow(vectors, INJECTED_NORM))
    (squares,) = row.squares(value)
    normed = row.normed(value, squares, weight, eps)
    first, *others = values
    return [first, *(share.map(lambda a, b: a + b, other, normed) for other in others)]


def make_altup_inject(operator: AltupInject, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Reference: `AltupInject.definition`."""
    rows = operator.rows.extent()
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        injected, y, vectors = args.one("injected"), args.streams("y"), args.vectors()
        apart = args.apart() if operator.apart else []
        x = args.streams("x") if not operator.apart else None
        with _row(operator, rows, spec) as row:
            found = _injected(row, injected, row.streams(y), vectors, operator.eps)
            for index, value in enumerate(found):
                if x is None:
                    row.put(apart[index], value)
                else:
                    row.put(x, value, index)
    return build.result


def make_split_streams(operator: SplitStreams, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Reference: `SplitStreams.definition`."""
    rows = operator.rows.extent()
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        x, apart = args.streams("x"), args.apart()
        with _row(operator, rows, spec) as row:
            for index, buffer in enumerate(apart):
                row.put(buffer, row.stream(x, index))
    return build.result


def make_altup_collapse(operator: AltupCollapse, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Reference: `AltupCollapse.definition`."""
    rows, width = operator.rows.extent(), operator.width
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        x = args.one("x") if operator.apart else args.streams("x")
        projected = [args.one(f"p{index}") for index in range(1, operator.streams)]
        out = args.one("out")
        with _row(operator, rows, spec) as row:
            share, total = row.share, row.one(x) if operator.apart else row.stream(x, 0)
            others = [row.one(one) for one in projected]
            size, *found = row.squares(total, *others)
            for other, squares in zip(others, found, strict=True):
                ratio = size_ratio(size / f32(width), squares / f32(width))
                scaled = row.scaled(other, materialize(ratio, "float32"))
                total = share.map(lambda a, b: a + b, total, scaled)
            row.put(out, row.scaled(total, f32(1.0 / operator.streams)))
    return build.result


def make_take_stream(operator: TakeStream, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: runs of the row x rows. Reference: `TakeStream.definition`."""
    rows, width = operator.rows.extent(), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        args = _Arguments(build, operator, rows)
        x, y = args.streams("x"), args.one("y")
        with launch(threads, -(-width // threads), rows) as (run, i, thread):
            j = bind(run * threads + thread)
            with when(j < i32(width)):
                store(y, x[i, j + operator.index * width], i, j)
    return build.result

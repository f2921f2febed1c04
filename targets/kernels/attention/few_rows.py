"""Attention of a few rows: flash decoding whose blocks share their keys among rows and heads.

A query is a query head of a row. The queries of one KV head are numbered row by row; a block takes
some of them, as that of one position takes some query heads, and a split of the keys that any row
sees. K and V are read once for all queries of a block, which norms and rotates them itself where
the layer has no keys of its own. Definitions: those of the operators in
gemma4_compile/operators/few_row_attention.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST, CombineSplits, declare_row_splits
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.few_row_attention import (
    FewRowAttention,
    NormedFewRowAttention,
)
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import most_of
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
from gemma4_compile.targets.kernels.attention.decode_block import DecodeBlock
from gemma4_compile.targets.kernels.attention.decode_norms import DecodeNorms
from gemma4_compile.targets.kernels.attention.decode_shape import DecodeShape, shape_of_heads
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    launch,
    resident,
    strided,
    zero,
)
from gemma4_compile.targets.kernels.common.row_slice import OneRow
from gemma4_compile.targets.kernels.prologues.splits import combine_shape, combine_slice
from gemma4_compile.targets.kernels.tiles.loaders import below
from gemma4_compile.targets.spec import TargetSpec

USUAL_ROWS = 4  # of a step: three guesses and the token before them
NOT_MANY = 5  # rows of a step, at most, whose blocks have as many queries as with four


@dataclass(frozen=True)
class Queries:
    """The queries of one KV head in one launch.

    Attributes
    ----------
    g, group : the KV head, and query heads that read it
    count : of queries
    first_position : position of the first row
    """

    g: Expr
    group: int
    count: Expr
    first_position: Expr

    def row(self, query: Expr) -> Expr:
        """The row of a query; those after the last have the last one's."""
        return tirx.floordiv(tirx.min(query, self.count - 1), self.group)

    def head(self, query: Expr) -> Expr:
        """The query head of a query."""
        own = tirx.floormod(tirx.min(query, self.count - 1), self.group)
        return self.g * self.group + own


class FewRowBlock(DecodeBlock):
    """A block whose heads are queries, each of which sees keys of its own."""

    def __init__(
        self,
        operator: FewRowAttention,
        shape: DecodeShape,
        cache: tuple[Buffer, Buffer],
        block: Block,
        queries: Queries,
        first: Expr,
    ) -> None:
        super().__init__(operator, shape, *cache, block)
        self.queries = queries
        weighed = tirx.floordiv(below(block.thread, self.scored), shape.packs)
        own = bind(queries.first_position + queries.row(first + weighed))
        self._last_key = materialize(own)
        self._first_key = None if operator.window is None else materialize(operator.first_key(own))

    def _is_seen(self, key: Expr, end: Expr) -> Expr:
        seen = (key < end) & (key <= self._last_key)
        return seen if self._first_key is None else seen & (key >= self._first_key)

    def _place_of(self, split: Expr, query: Expr) -> tuple[Expr, ...]:
        return self.queries.row(query), split, self.queries.head(query)

    def _if_exists(self, query: Expr) -> AbstractContextManager[None]:
        return when(query < self.queries.count)

    def _share(self, weight_sum: Expr) -> Expr:
        total = bind(weight_sum)  # 0 where the query sees no key of the split
        return tirx.Select(total > zero(), f32(1.0) / tirx.max(total, f32(1e-30)), zero())

    def load_query(self, q: Buffer, first: Expr) -> None:
        """Copy the block's queries to shared memory; ends with a barrier."""
        shape, vectors, dim = self.shape, self.vectors, self.operator.head_dim
        self.pad_query()
        with strided(self.block, shape.heads * shape.columns) as item:
            h = bind(tirx.floordiv(item, shape.columns))
            place = bind(tirx.floormod(item, shape.columns))
            row, head = bind(self.queries.row(first + h)), bind(self.queries.head(first + h))
            values = q[row, vectors.from_channel(head * dim + place * vectors.size)]
            store(self.query, values, h, vectors.at(place))
        barrier()

    def store_empty(self, o_partial: Buffer, split_lse: Buffer, split: Expr, first: Expr) -> None:
        """The results of a split without keys."""
        shape, vectors, queries = self.shape, self.vectors, self.queries
        with strided(self.block, shape.heads * shape.columns) as item:
            query = bind(first + tirx.floordiv(item, shape.columns))
            column = tirx.floormod(item, shape.columns)
            nothing = vectors.splat(tirx.const(0, self.operator.cache_dtype))
            with when(query < queries.count):
                store(o_partial, nothing, *self._place_of(split, query), vectors.at(column))
        query = bind(first + self.thread)
        with when((self.thread < shape.heads) & (query < queries.count)):
            place = self._place_of(split, query)
            store(split_lse, f32(LOWEST), *place, 0)
            store(split_lse, zero(), *place, 1)


class FewRowNorms(DecodeNorms):
    """Norms and rotations of the block's queries, each of which is of a row of its own."""

    def __init__(
        self,
        operator: NormedFewRowAttention,
        block: FewRowBlock,
        args: tuple[Buffer, Buffer, Buffer],
        first_step: Expr,
    ) -> None:
        qkv, q_norm, rotary = args
        super().__init__(operator, block, (qkv, q_norm, None, rotary), first_step)
        self._queries = block.queries

    def _place_in_call(self, row: Expr, first: Expr) -> tuple[Index, Expr]:
        i = bind(self._queries.row(first + row))
        return i, bind(self.step + i)

    def _column(self, row: Expr, first: Expr, g: Expr) -> Expr:
        return self._queries.head(first + row) * (self.operator.head_dim // self.vectors.size)


def few_row_shape(
    operator: FewRowAttention, spec: TargetSpec, queries: int, rows: int = USUAL_ROWS
) -> DecodeShape:
    """The shape of a block, which has a power of two of queries.

    Fewer where the blocks of a step of `rows` would be too few to fill the device.
    """
    most = min(queries, most_of(operator.rows) * operator.heads)
    counts = [1 << power for power in reversed(range(most.bit_length()))]
    all_queries = operator.splits * operator.heads * min(rows, most_of(operator.rows))
    aim = spec.tuning.few_rows.attention_blocks
    fills = [count for count in counts if all_queries // count >= aim]
    return shape_of_heads(operator, spec, [*fills, 1] if 1 not in fills else fills)


@dataclass(frozen=True)
class _Arguments:
    """Arguments of the attention of `n` rows; `norm` are those of its norm, if it has one."""

    n: Index
    q: Buffer
    cache: tuple[Buffer, Buffer]
    positions: Buffer
    norm: tuple[Buffer, Buffer] | None
    o_partial: Buffer
    split_lse: Buffer

    @classmethod
    def declared(cls, build: FunctionBuilder, operator: FewRowAttention) -> _Arguments:
        n, shape = operator.rows.extent(), operator.cache.shape()
        q = build.arg("q", (n, operator.heads * operator.head_dim), "float32")
        key = build.arg("key", shape, operator.cache_dtype)
        value = build.arg("value", shape, operator.cache_dtype)
        positions = build.arg("positions", (4,), "int32")
        norm = operator.declare_norm(build) if isinstance(operator, NormedFewRowAttention) else None
        results = declare_row_splits(build, operator, n, operator.cache_dtype)
        return cls(n, q, (key, value), positions, norm, *results)


def make_few_row_attention(operator: FewRowAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Online softmax over one split's keys, for some queries of one KV head.

    The host launches a kernel whose blocks have more queries where there are many rows. Definition:
    the operator's `definition`.
    """
    tuning = spec.tuning.few_rows
    usual = many = few_row_shape(operator, spec, tuning.queries)
    if tuning.many_queries and most_of(operator.rows) > NOT_MANY:
        many = few_row_shape(operator, spec, tuning.many_queries, most_of(operator.rows))
    with function(scheduled=True) as build:
        args = _Arguments.declared(build, operator)
        if many == usual:
            _attend(operator, spec, args, usual)
        else:
            with T.If(args.n <= NOT_MANY):
                with T.Then():
                    _attend(operator, spec, args, usual)
                with T.Else():
                    _attend(operator, spec, args, many)
    return build.result


def _attend(
    operator: FewRowAttention, spec: TargetSpec, args: _Arguments, shape: DecodeShape
) -> None:
    """Launch the kernel.

    Grid: splits x KV heads * blocks of queries. Shared: as `make_split_attention`.
    """
    n, positions, group = args.n, args.positions, operator.heads // operator.kv_heads
    blocks = tirx.floordiv(n * group + (shape.heads - 1), shape.heads)
    grid = operator.splits, operator.kv_heads * blocks
    held = resident(spec.tuning.few_rows.attention_resident)
    with launch(shape.threads, *grid) as (split, part, thread), held:
        last, rows = materialize(positions[2] - 1), bind(i32(n))
        first_position = materialize(positions[2] - rows)
        bounds = operator.split_range(last, split, first_position)
        begin, end = (materialize(bound) for bound in bounds)
        per_head = bind(tirx.floordiv(rows * group + (shape.heads - 1), shape.heads))
        g = bind(tirx.floordiv(part, per_head))
        first = bind(tirx.floormod(part, per_head) * shape.heads)
        queries = Queries(g, group, bind(rows * group), first_position)
        block = Block(thread, shape.threads, spec.simd_width)
        attention = FewRowBlock(operator, shape, args.cache, block, queries, first)
        norms = None
        if args.norm is not None and isinstance(operator, NormedFewRowAttention):
            first_step = materialize(operator.step(positions, rows, i32(0)))
            norms = FewRowNorms(operator, attention, (args.q, *args.norm), first_step)
        with T.If(begin < end):
            with T.Then():
                attention.load_keys(begin, end - 1, g)
                if norms is None:
                    attention.load_query(args.q, first)
                else:
                    attention.pad_query()
                    norms.run(first, g)
                attention.run(begin, end, end - 1, last, g)
                attention.finish(args.o_partial, args.split_lse, split, first)
            with T.Else():
                attention.store_empty(args.o_partial, args.split_lse, split, first)


def make_combine_few_rows(operator: CombineSplits, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_combine_splits` for each row.

    Grid: heads * slices of channels x rows. Definition: `CombineSplits.definition`.
    """
    dim, heads, n = operator.head_dim, operator.heads, symbolic_rows(None)
    shape = combine_shape(dim, operator.splits, spec)
    vectors = shape.vectors
    with function(scheduled=True) as build:
        o_partial, split_lse = declare_row_splits(build, operator, n, operator.out_dtype)
        out = build.arg("out", (n, heads * dim), operator.out_dtype)
        with launch(shape.threads, heads * shape.slices, n) as (part, i, thread):
            h = bind(tirx.floordiv(part, shape.slices))
            slice_ = bind(tirx.floormod(part, shape.slices))
            own = OneRow(o_partial, i), OneRow(split_lse, i)
            combined = combine_slice(shape, *own, h, slice_, thread)
            column = bind(slice_ * shape.width + thread)
            with when((thread < shape.width) & (column < shape.columns)):
                result = vectors.cast(combined, operator.out_dtype)
                store(out, result, i, vectors.at(h * shape.columns + column))
    return build.result

"""Attention of a few rows: flash decoding whose blocks share their keys among rows and heads.

A query is a query head of a row. The queries of one KV head are numbered row by row; a block takes
some of them, as that of one position takes some query heads, and a split of the keys that any row
sees. K and V are read once for all queries of a block, which norms and rotates them itself where
the layer has no keys of its own. Definition:
gemma4_compile/operators/split_attention.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import most_of
from gemma4_compile.operators.split_attention import SplitArguments, SplitAttention
from gemma4_compile.operators.tir import (
    bind,
    function,
    i32,
    materialize,
    when,
)
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.targets.kernels.attention.decode_block import DecodeBlock
from gemma4_compile.targets.kernels.attention.decode_norms import DecodeNorms
from gemma4_compile.targets.kernels.attention.decode_shape import DecodeShape, shape_of_heads
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    launch,
    resident,
    zero,
)
from gemma4_compile.targets.kernels.tiles.loaders import below
from gemma4_compile.targets.spec import TargetSpec

USUAL_ROWS = 4  # of a step: three drafts and the token before them
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
        operator: SplitAttention,
        shape: DecodeShape,
        args: SplitArguments,
        block: Block,
        queries: Queries,
        first: Expr,
    ) -> None:
        super().__init__(operator, shape, args, block)
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

    def _numbered(self, query: Expr) -> Expr:
        return bind(query)

    def _and_exists(self, condition: Expr, query: Expr) -> Expr:
        return condition & (query < self.queries.count)

    def _if_exists(self, query: Expr) -> AbstractContextManager[None]:
        return when(query < self.queries.count)

    def _share(self, weight_sum: Expr) -> Expr:
        total = bind(weight_sum)  # 0 where the query sees no key of the split
        return tirx.Select(total > zero(), f32(1.0) / tirx.max(total, f32(1e-30)), zero())

    def _source_of(self, query: Expr, i: Index) -> tuple[Index, Expr]:
        return bind(self.queries.row(query)), bind(self.queries.head(query))


class FewRowNorms(DecodeNorms):
    """Norms and rotations of the block's queries, each of which is of a row of its own."""

    def __init__(self, operator: SplitAttention, block: FewRowBlock, first_step: Expr) -> None:
        super().__init__(operator, block, first_step)
        self._queries = block.queries

    def _place_in_call(self, row: Expr, first: Expr) -> tuple[Index, Expr]:
        i = bind(self._queries.row(first + row))
        return i, bind(self.step + i)

    def _column(self, row: Expr, first: Expr, g: Expr) -> Expr:
        return self._queries.head(first + row) * (self.operator.head_dim // self.vectors.size)


def few_row_shape(
    operator: SplitAttention, spec: TargetSpec, queries: int, rows: int = USUAL_ROWS
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


def make_few_row_attention(operator: SplitAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Online softmax over one split's keys, for some queries of one KV head.

    The host launches a kernel whose blocks have more queries where there are many rows. Definition:
    the operator's `definition`.
    """
    tuning = spec.tuning.few_rows
    usual = many = few_row_shape(operator, spec, tuning.queries)
    if tuning.many_queries and most_of(operator.rows) > NOT_MANY:
        many = few_row_shape(operator, spec, tuning.many_queries, most_of(operator.rows))
    with function(scheduled=True) as build:
        args = operator.declare(build)
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
    operator: SplitAttention, spec: TargetSpec, args: SplitArguments, shape: DecodeShape
) -> None:
    """Launch the kernel.

    Grid: splits x KV heads * blocks of queries. Shared: as `make_decode_attention`.
    """
    n, positions, group = args.n, args.positions, operator.heads // operator.kv_heads
    blocks = tirx.floordiv(n * group + (shape.heads - 1), shape.heads)
    grid = operator.splits, operator.kv_heads * blocks
    held = resident(spec.tuning.few_rows.attention_resident)
    with launch(shape.threads, *grid) as (split, part, thread), held:
        of_keys, key = operator.part, args.key
        last, rows = materialize(of_keys.own(positions[2] - 1, key)), bind(i32(n))
        first_position = materialize(of_keys.own(positions[2] - rows, key))
        bounds = operator.split_range(last, split, key, first_position)
        begin, end = (materialize(bound) for bound in bounds)
        per_head = bind(tirx.floordiv(rows * group + (shape.heads - 1), shape.heads))
        g = bind(tirx.floordiv(part, per_head))
        first = bind(tirx.floormod(part, per_head) * shape.heads)
        queries = Queries(g, group, bind(rows * group), first_position)
        block = Block(thread, shape.threads, spec.simd_width)
        attention = FewRowBlock(operator, shape, args, block, queries, first)
        norms = None
        if operator.normed is not None:
            first_step = materialize(operator.step(positions, rows, i32(0)))
            norms = FewRowNorms(operator, attention, first_step)
        with T.If(begin < end):
            with T.Then():
                attention.load_keys(begin, end - 1, g)
                attention.pad_query()
                if norms is None:
                    attention.load_query(first)
                else:
                    norms.run(first, g)
                attention.start(split, first)
                attention.run(begin, end, end - 1, last, g)
                attention.finish(split, first)
            if of_keys.is_first:
                with T.Else():
                    attention.store_empty(split, first)

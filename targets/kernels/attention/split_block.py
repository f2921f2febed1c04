"""What blocks of an attention in splits have in common, however they divide their keys."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tvm import tirx

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.split_attention import SplitArguments, SplitAttention
from gemma4_compile.operators.tir import bind, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.attention.decode_shape import DecodeShape
from gemma4_compile.targets.kernels.attention.tensor_core_decode_shape import TensorCoreDecodeShape
from gemma4_compile.targets.kernels.attention.warp_shape import WarpShape
from gemma4_compile.targets.kernels.common.blocks import Block, barrier, shared, strided, zero


class SplitBlock:
    """The queries of one block, its new key and value, and where its results lie."""

    def __init__(
        self,
        operator: SplitAttention,
        shape: DecodeShape | WarpShape | TensorCoreDecodeShape,
        args: SplitArguments,
        block: Block,
    ) -> None:
        self.operator, self.args = operator, args
        self.key, self.value = args.key, args.value
        self.block, self.thread, self.vectors = block, block.thread, shape.vectors
        self.division = shape
        self.query = shared((shape.heads, shape.query_width))
        self.new: tuple[Buffer, Buffer] | None = None

    def make_new(self) -> None:
        """Ask for shared memory for a new key and value."""
        self.new = self._new(), self._new()

    def _new(self) -> Buffer:
        return shared((self.operator.head_dim,), self.operator.cache_dtype)

    def new_place(self, vector: Expr) -> Index:
        """Where a vector of the new key or value lies in the memory of it."""
        return self.vectors.at(vector)

    def pad_query(self) -> None:
        """Write the zeros after the query heads."""
        padding, vectors = self.division.padding, self.vectors
        if padding:
            with strided(self.block, self.division.heads * padding) as item:
                h, place = tirx.floordiv(item, padding), tirx.floormod(item, padding)
                nothing = vectors.splat(zero())
                store(self.query, nothing, h, vectors.at(self.division.columns + place))

    def load_query(self, first: Expr, i: Index = 0) -> None:
        """Copy the block's queries, of row `i`, to shared memory; ends with a barrier."""
        shape, vectors, dim = self.division, self.vectors, self.operator.head_dim
        with strided(self.block, shape.heads * shape.columns) as item:
            h = bind(tirx.floordiv(item, shape.columns))
            place = bind(tirx.floormod(item, shape.columns))
            row, head = self._source_of(first + h, i)
            values = self.args.q[row, vectors.from_channel(head * dim + place * vectors.size)]
            store(self.query, values, h, vectors.at(self.query_place(place)))
        barrier()

    def query_place(self, place: Expr) -> Expr:
        """Where a vector of a query lies in the block's memory of it."""
        return place

    def _source_of(self, query: Expr, i: Index) -> tuple[Index, Expr]:
        """Row and head of a query of the launch, or of row `i`."""
        return i, query

    def store_empty(self, split: Expr, first: Expr) -> None:
        """The results of a split without keys."""
        shape, vectors = self.division, self.vectors
        o_partial, split_lse = self.args.splits
        with strided(self.block, shape.heads * shape.columns) as item:
            query = self._numbered(first + tirx.floordiv(item, shape.columns))
            column = tirx.floormod(item, shape.columns)
            nothing = vectors.splat(tirx.const(0, self.operator.cache_dtype))
            with self._if_exists(query):
                store(o_partial, nothing, *self._place_of(split, query), vectors.at(column))
        query = self._numbered(first + self.thread)
        with when(self._and_exists(self.thread < shape.heads, query)):
            place = self._place_of(split, query)
            store(split_lse, f32(LOWEST), *place, 0)
            store(split_lse, zero(), *place, 1)

    def store_new(self, is_writer: Expr, position: Expr, g: Expr) -> None:
        """Write the new position's key and value to the caches, in the block that is to."""
        slot = materialize(self.operator.cache.row(position))
        with when(is_writer & (self.thread < self.division.columns)):
            own, place = self.new_place(self.thread), self.vectors.at(self.thread)
            for new, target in zip(self.new or (), (self.key, self.value), strict=True):
                store(target, new[own], slot, g, place)

    def _place_of(self, split: Expr, query: Expr) -> tuple[Expr, ...]:
        """Place of the results of a split and of a query of the launch."""
        return split, query

    def _numbered(self, query: Expr) -> Expr:
        """Return a query's number, which is used several times where more depends on it."""
        return query

    def _and_exists(self, condition: Expr, query: Expr) -> Expr:
        """Return whether a condition holds and a query of the block is one."""
        return condition

    def _if_exists(self, query: Expr) -> AbstractContextManager[None]:
        """Open the condition that a query of the block is one."""
        return nullcontext()

    def _share(self, weight_sum: Expr) -> Expr:
        """The factor of a sum of weighted values."""
        return f32(1.0) / weight_sum

    def _is_seen(self, key: Expr, end: Expr) -> Expr:
        """Return whether the query that this thread weighs keys for sees one of a split."""
        return key < end

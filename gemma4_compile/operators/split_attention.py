"""Flash decoding: attention of one position, or of a few rows, in splits of the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import OverCache
from gemma4_compile.operators.attention_splits import declare_splits
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.dots import Dot, plain_dot
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.heads import Carried, Head, QkvColumns, norm_and_rotate
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import Joint, One, OneOf
from gemma4_compile.operators.tir import (
    FunctionBuilder,
    LocalVar,
    OneRow,
    bind,
    function,
    i32,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index


@dataclass(frozen=True)
class Query:
    """Where queries come from: they are an argument, normed and rotated. The base of its forms."""

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type[Query]:
        """Return the class of a query from its fields."""
        return NormedQuery if values.get("form") == "normed" else cls


@dataclass(frozen=True)
class NormedQuery(Query):
    """`QkNormRopeCache` of the same rows, in the attention's launch; its fields."""

    pairs: int = 0
    rotary_offset: int = 0
    rotary_total: int = 0
    eps: float = 0.0
    owns_kv: bool = False
    value_is_key: bool = False
    form: str = "normed"


GIVEN = Query()


@dataclass(frozen=True)
class SplitArguments:
    """Arguments of `SplitAttention` for `n` rows, or of the one `row` of them.

    `splits` are its results.
    """

    n: Index
    splits: tuple[Buffer, Buffer]
    q: Buffer
    key: Buffer
    value: Buffer
    positions: Buffer
    q_norm: Buffer | None = None
    k_norm: Buffer | None = None
    rotary: Buffer | None = None
    row: Expr | None = None


@dataclass(frozen=True)
class SplitAttention(OverCache):
    """Causal (and sliding) attention in splits of the keys: the first half of a decode step.

    Arguments: q (rows, heads * head_dim) f32; key, value caches, with the rows' own keys; positions
    (4,) int32. Results: o_partial (splits, heads, head_dim) cache_dtype, each split's own
    attention, and split_lse (splits, heads, 2) f32, its maximum and sum of weights. An empty split
    has outputs 0, maximum `LOWEST` and sum 0. The number of splits does not depend on the position,
    so the launch is always the same; a split holds a multiple of `grain` keys, so that few keys
    make few splits.

    With `NormedQuery` q is made in the launch. Of one position arguments are qkv (1, width) f32;
    q_norm (head_dim,); k_norm (head_dim,) if `owns_kv`; positions; rotary (chunk, rotary_total, 2)
    f32; key and value caches, in place if `owns_kv`.

    A few rows have an axis in front of the results' others. The keys that any of them sees are
    divided among the splits, which all share; of a split a row sees those that are in its window
    and not after it. With `NormedQuery`, of a layer without keys of its own, arguments are the
    projection in place of q and, as the last, q_norm and rotary.

    Rows of several sequences (`Joint`) have arguments as one position has, and the axis of few
    rows; each is what that of one position is of its sequence. Key and value caches have those of
    all slots, (slots, rows, kv_heads, head_dim); positions (chunk, 2) int32 has each row's position
    and slot, and the rotary table a line for each row. Where the launch writes keys, a sequence has
    one row: another would not wait for its key. Of keys that are written already, it may have some.

    With `behind` the last key that a row sees is so many positions before its own, as a draft's is,
    which has no key.

    One row of several sequences (`OneOf`) has the same arguments, but key and value caches are
    those of its sequence, and behind them is a scalar, `row`. It writes that row of the results,
    and nothing where there is no such row.

    Of a part of the cache the splits are of the part's keys. Each split of a later part goes on
    from that of the same number of the parts before: results are in place, and those of a split
    without keys stay what they are. A new key and value are written where the part has a row.
    """

    kind: ClassVar[str] = "split_attention"
    splits: int = 1
    grain: int = 1
    query: Query = GIVEN
    behind: int = 0

    @property
    def name(self) -> str:
        if self.is_one:
            return self.kind if self.normed is None else "decode_attention"
        if self.is_of_several:
            stem = "attention" if self.normed is None else "decode_attention"
            return f"{self.rows.prefix}{stem}"
        return "few_row_attention" if self.normed is None else "normed_few_row_attention"

    @property
    def variant(self) -> str:
        return self.name

    @property
    def is_one(self) -> bool:
        """Whether it is of one position."""
        return isinstance(self.rows, One)

    @property
    def is_joint(self) -> bool:
        """Whether its rows are of several sequences, and the caches those of all slots."""
        return isinstance(self.rows, Joint)

    @property
    def is_of_several(self) -> bool:
        """Whether it is of a row of each of several sequences, or of one of those rows."""
        return isinstance(self.rows, Joint | OneOf)

    @property
    def normed(self) -> NormedQuery | None:
        """What makes q in the launch."""
        return self.query if isinstance(self.query, NormedQuery) else None

    @property
    def owns_kv(self) -> bool:
        """Whether the launch makes a new key and value."""
        return self.normed is not None and self.normed.owns_kv

    @property
    def goes_on(self) -> bool:
        is_later = not self.part.is_first or isinstance(self.rows, OneOf)
        return is_later and not self.owns_kv

    @property
    def head(self) -> Head:
        """Norm and rotation of one head."""
        assert self.normed is not None, "asked for with a norm"
        return Head(self.head_dim, self.normed.pairs, self.normed.rotary_offset, self.normed.eps)

    @property
    def columns(self) -> QkvColumns:
        """Columns of the heads in what the projection makes."""
        is_key = self.normed is not None and self.normed.value_is_key
        return QkvColumns(self.heads, self.kv_heads, self.head_dim, self.owns_kv, is_key)

    def split_range(
        self, position: Expr, split: Expr, key: Buffer, first_position: Expr | None = None
    ) -> tuple[Expr, Expr]:
        """Keys [begin, end) of a split.

        Of the positions from `first_position` to `position`, or of the one; a part's own.
        """
        if not self.part.is_whole:
            return self._part_range(bind(self.part.end(position + 1, key)), split)
        first = self.first_key(position if first_position is None else first_position)
        count = position + 1 - first
        whole = self.splits * self.grain
        size = tirx.floordiv(count + i32(whole - 1), i32(whole)) * self.grain
        begin = first + i32(split) * size
        return tirx.min(begin, position + 1), tirx.min(begin + size, position + 1)

    def _part_range(self, end: Expr, split: Expr) -> tuple[Expr, Expr]:
        """Of the keys below `end`, all of which are seen: a part is of a layer without a window."""
        assert self.window is None, "rings are whole"
        whole = self.splits * self.grain
        size = tirx.floordiv(end + i32(whole - 1), i32(whole)) * self.grain
        begin = i32(split) * size
        return tirx.min(begin, end), tirx.min(begin + size, end)

    def row_range(self, args: SplitArguments, row: Expr, split: Expr) -> tuple[Expr, Expr]:
        """Keys [begin, end) of a split that a row sees; a part's own."""
        positions, rows, key = args.positions, i32(args.n), args.key
        last = bind(self.part.own(self.last_position(positions, row), key))
        if self.is_one or self.is_of_several:
            begin, end = (bind(bound) for bound in self.split_range(last, split, key))
            return begin, end
        first = bind(self.part.own(positions[2] - rows, key))
        begin, end = (bind(bound) for bound in self.split_range(last, split, key, first))
        own = bind(first + row)
        seen = bind(tirx.max(begin, self.first_key(own)))
        return seen, bind(tirx.max(tirx.min(end, own + 1), seen))

    def last_position(self, positions: Buffer, row: Index) -> Expr:
        """The last that a row of several sequences sees, or the position of the last row of one."""
        if not self.is_of_several:
            return positions[2] - 1
        return positions[row, 0] - self.behind if self.behind else positions[row, 0]

    def step(self, positions: Buffer, rows: Index, row: Expr) -> Expr:
        """The row of the rotary table for a row of the call."""
        return row if self.is_of_several else positions[1] - i32(rows) + row

    def of_row(self, args: SplitArguments, row: Index) -> SplitArguments:
        """The arguments with the caches of a row of several sequences; else those of the call."""
        if not self.is_joint:
            return args
        slot = bind(args.positions[row, 1])
        return replace(args, key=OneRow(args.key, slot), value=OneRow(args.value, slot))

    def declare(self, build: FunctionBuilder) -> SplitArguments:
        """The arguments of definition and kernel."""
        rows, dim, normed = self.rows.extent(), self.head_dim, self.normed
        cache = self.cache.pool() if self.is_joint else self.cache.shape()
        chunk = tirx.Var("chunk", "int64")
        specs: dict[str, TensorSpec] = {
            **dict.fromkeys(("q", "qkv"), ((rows, self.columns.width), "float32")),
            "q_norm": ((dim,), "float32"),
            "k_norm": ((dim,), "float32"),
            "positions": (self._positions_shape(), "int32"),
            "rotary": ((chunk, normed.rotary_total if normed else 0, 2), "float32"),
            "key": (cache, self.cache_dtype),
            "value": (cache, self.cache_dtype),
        }
        names = ["q", "key", "value", "positions"]
        if normed is not None and (self.is_one or self.is_of_several):
            norms = ("q_norm", "k_norm") if self.owns_kv else ("q_norm",)
            names = ["qkv", *norms, "positions", "rotary", "key", "value"]
        elif normed is not None:
            assert not self.owns_kv, "keys of a few rows are in the KV state"
            names += ["q_norm", "rotary"]
        args = {name: build.arg(name, *specs[name]) for name in names}
        q = args.pop(names[0])
        row = build.scalar_arg("row") if isinstance(self.rows, OneOf) else None
        splits = declare_splits(build, self, self.cache_dtype, self.rows.lead(rows))
        return SplitArguments(rows, splits, q, row=row, **args)

    def _positions_shape(self) -> tuple[Index, ...]:
        return (tirx.Var("chunk", "int64"), 2) if self.is_of_several else (4,)

    def example_scalar(self, sizes: Sizes) -> int:
        return self.rows.count(sizes.rows) // 2

    @contextmanager
    def _each_row(self, args: SplitArguments) -> Iterator[Expr]:
        """The rows that are computed, one after the other: all, or the one that is named."""
        if args.row is None:
            with T.serial(0, args.n) as i:
                yield i
        else:
            with when(args.row < args.n):
                yield args.row

    def definition(self) -> tirx.PrimFunc:
        return self.with_dot(plain_dot)

    def with_dot(self, dot: Dot) -> tirx.PrimFunc:
        """The function of the definition, whose scores `dot` makes."""
        with function(scheduled=False) as build:
            args = whole = self.declare(build)
            if self.owns_kv and not self.is_of_several:
                self._store_new(args, 0)
            with self._each_row(whole) as i:
                args = self.of_row(whole, i)
                if self.owns_kv and self.is_of_several:
                    self._store_new(args, i)
                q, row = self._prepared(args, i)
                with T.serial(0, self.splits) as s, T.serial(0, self.heads) as h:
                    begin, end = self.row_range(args, i32(i), s)
                    place, goes_on = (*self.rows.lead(i), s, h), not self.part.is_first
                    carried = self._carried(args, place) if goes_on else None
                    with when(begin < end) if goes_on else nullcontext():
                        cache = args.key, args.value
                        found = self.online(q, *cache, row, h, begin, end, carried, dot)
                        self._store_split(args, place, *found)
        return build.result

    def _carried(self, args: SplitArguments, place: tuple[Index, ...]) -> Carried:
        """What the same split of the parts before has."""
        o_partial, split_lse = args.splits
        lse = bind(split_lse[(*place, 0)]), bind(split_lse[(*place, 1)])
        return Carried(lambda d: o_partial[(*place, d)], *lse)

    def _store_new(self, args: SplitArguments, i: Index) -> None:
        """The key and the value of a row, in their row of the caches."""
        step = bind(self.step(args.positions, 1, i32(i)))
        position = self.last_position(args.positions, i)
        slot = bind(self.cache.row(self.part.own(position, args.key)))
        held = nullcontext() if self.part.is_whole else when(self.part.holds(slot, args.key))
        with held, T.serial(0, self.kv_heads) as g:
            k_column, v_column = self.columns.of_kv(g)
            for column, weight, turn, cache in (
                (k_column, args.k_norm, args.rotary, args.key),
                (v_column, None, None, args.value),
            ):

                def put(d: Expr, y: Expr, cache: Buffer = cache) -> None:
                    store(cache, y.astype(self.cache_dtype), slot, g, d)

                norm_and_rotate(self.head, args.q, i, column, weight, turn, step, put)

    def _prepared(self, args: SplitArguments, i: Expr) -> tuple[Buffer, Index]:
        """The buffer and the row with the queries of a row."""
        if self.normed is None:
            return args.q, i
        own = T.alloc_buffer((1, self.heads * self.head_dim), "float32", scope="local")
        step = bind(self.step(args.positions, args.n, i32(i)))
        with T.serial(0, self.heads) as h:

            def keep(d: Expr, y: Expr, first: Expr = h * self.head_dim) -> None:
                store(own, y, 0, first + d)

            column = h * self.head_dim
            norm_and_rotate(self.head, args.q, i, column, args.q_norm, args.rotary, step, keep)
        return own, 0

    def _store_split(
        self,
        args: SplitArguments,
        place: tuple[Index, ...],
        total: Buffer,
        highest: LocalVar,
        weights: LocalVar,
    ) -> None:
        o_partial, split_lse = args.splits
        # Divided as `PrefillAttention` divides, so that one split is what a chunk's row has.
        share = bind(tirx.Select(weights.value == f32(0.0), f32(1.0), weights.value))
        with T.serial(0, self.head_dim) as d:
            store(o_partial, (total[d] / share).astype(self.cache_dtype), *place, d)
        store(split_lse, highest.value, *place, 0)
        store(split_lse, weights.value, *place, 1)

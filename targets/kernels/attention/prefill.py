"""Attention of a prefill chunk: flash attention reading the ring (or the whole context) directly.

The chunk's own keys are in the KV state already, so there is no separate part for them. Definition:
`PrefillAttention.definition` in gemma4_compile/operators/attention.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index, Operation
from gemma4_compile.targets.kernels.attention.prefill_shape import (
    SCORE_VEC4,
    ChunkOperator,
    ChunkShape,
    chunk_shape,
)
from gemma4_compile.targets.kernels.common.blocks import (
    add,
    barrier,
    launch,
    local,
    shared,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.tiles.loaders import below
from gemma4_compile.targets.spec import TargetSpec

WARP_WIDTH, WARP_HEIGHT = 8, 4  # neighbouring threads: keys x rows, so that both are broadcast


@dataclass(frozen=True)
class PrefillOperands:
    """Arguments of the kernel, and where the block begins in them.

    Attributes
    ----------
    first_head, g : query heads of the block from this one on, and their KV head
    first_token, last_token : rows of the chunk: the block's first, and the chunk's last
    offset : of a token's position, in the part's own where the keys are a part
    last_rows : the last row of the chunk that each row sees, None where that is the row itself
    lowest : position of the first row that is kept, None where the chunk has no copies
    """

    q: Buffer
    key: Buffer
    value: Buffer
    first_head: Expr
    g: Expr
    first_token: Expr
    last_token: Expr
    offset: Expr
    last_rows: Buffer | None = None
    lowest: Expr | None = None

    def position(self, token: Expr) -> Expr:
        """The position of a row of the chunk."""
        position = self.offset + token
        return position if self.lowest is None else tirx.max(position, self.lowest)

    def key_end(self, token: Expr) -> Expr | None:
        """The position after the last key that a row sees, where that is not the row's own."""
        if self.last_rows is None:
            return None
        return self.offset + self.last_rows[tirx.min(token, self.last_token)] + 1


class PrefillBlock:
    """One block's operands, registers and shared memory."""

    def __init__(
        self, operator: ChunkOperator, shape: ChunkShape, args: PrefillOperands, thread: Expr
    ) -> None:
        self.operator, self.shape, self.thread = operator, shape, thread
        self.q, self.key, self.value = args.q, args.key, args.value
        self.first_head, self.g = args.first_head, args.g
        self.first_token, self.last_token = args.first_token, args.last_token
        self.position = args.position
        size = shape.vectors.size
        self.q_tile, self.k_tile = (
            shared((rows, shape.chunk * size)) for rows in (shape.rows, shape.keys)
        )
        self.weights = shared((shape.rows, shape.keys))
        self.tops, self.factors = shared((shape.rows, shape.vec4s)), shared((shape.rows,))
        self.q_next = local((self._iterations(shape.rows) * size,))
        self.k_next = local((self._iterations(shape.keys) * size,), operator.cache_dtype)
        self.v_next = local((SCORE_VEC4.size * size,), operator.cache_dtype)
        self.total = local((shape.own_rows * size,))
        self.dots = local((shape.scored_rows * SCORE_VEC4.size,))
        self.highest = [LocalVar("float32", f32(LOWEST)) for _ in range(shape.scored_rows)]
        self.weight_sum = [LocalVar("float32", zero()) for _ in range(shape.scored_rows)]
        for index in range(shape.own_rows):
            store(self.total, shape.vectors.splat(zero()), shape.vectors.at(index))
        self.vec4, self.scored_row = self._place_in_scores()
        ends = [args.key_end(self.token(self._scored(i))) for i in range(shape.scored_rows)]
        self.row_ends = [LocalVar("int32", end) for end in ends if end is not None]
        self.column = bind(below(thread, shape.columns))
        # Threads beyond the last group repeat its work and drop it.
        group = tirx.floordiv(thread, shape.columns)
        self.group = bind(tirx.min(group, shape.row_groups - 1))

    def _place_in_scores(self) -> tuple[Expr, Expr]:
        """The vector of keys and the first row that this thread scores."""
        shape, thread = self.shape, self.thread
        height = shape.threads // shape.vec4s
        if shape.vec4s % WARP_WIDTH or height % WARP_HEIGHT:
            return bind(below(thread, shape.vec4s)), bind(tirx.floordiv(thread, shape.vec4s))
        across = shape.vec4s // WARP_WIDTH
        warp = tirx.floordiv(thread, WARP_WIDTH * WARP_HEIGHT)
        vec4 = below(warp, across) * WARP_WIDTH + below(thread, WARP_WIDTH)
        row = below(tirx.floordiv(thread, WARP_WIDTH), WARP_HEIGHT)
        return bind(vec4), bind(tirx.floordiv(warp, across) * WARP_HEIGHT + row)

    def token(self, row: Expr) -> Expr:
        """The chunk's row that a row of the block belongs to, before the end of the chunk."""
        return self.first_token + tirx.floordiv(row, self.shape.heads)

    def head(self, row: Expr) -> Expr:
        """The query head of a row of the block."""
        return self.first_head + tirx.floormod(row, self.shape.heads)

    # --- q and K on their way to shared memory ---

    def _iterations(self, rows: int) -> int:
        return -(-rows * self.shape.chunk // self.shape.threads)

    def _item(self, iteration: int, rows: int) -> tuple[Expr, Expr, Expr]:
        """Row and vector that this thread stages, and whether it is the thread's to do."""
        shape = self.shape
        item = self.thread + iteration * shape.threads
        inside = item < rows * shape.chunk
        item = tirx.min(item, rows * shape.chunk - 1)
        return tirx.floordiv(item, shape.chunk), below(item, shape.chunk), inside

    def _swizzled(self, row: Expr, place: Expr) -> Index:
        """Return the place of a vector of q or K: neighbouring rows are in other banks."""
        chunk = self.shape.chunk
        return self.shape.vectors.at(below(tirx.bitwise_xor(place, below(row, chunk)), chunk))

    def load(self, chunk: Index, base: Expr, last: Expr) -> None:
        """Read the thread's slice of a chunk of q and of the tile of keys from `base`."""
        shape, vectors = self.shape, self.shape.vectors
        for iteration in range(self._iterations(shape.rows)):
            row, place, _ = self._item(iteration, shape.rows)
            token = materialize(tirx.min(self.token(row), self.last_token))
            column = self.head(row) * shape.columns + chunk * shape.chunk + place
            store(self.q_next, self.q[token, vectors.at(column)], vectors.at(iteration))
        for iteration in range(self._iterations(shape.keys)):
            t, place, _ = self._item(iteration, shape.keys)
            slot = materialize(self.operator.cache.row(tirx.min(base + t, last)))
            item = self.key[slot, self.g, vectors.at(chunk * shape.chunk + place)]
            store(self.k_next, item, vectors.at(iteration))

    def _stage(self) -> None:
        shape, vectors = self.shape, self.shape.vectors
        for rows, source, tile in (
            (shape.rows, self.q_next, self.q_tile),
            (shape.keys, self.k_next, self.k_tile),
        ):
            for iteration in range(self._iterations(rows)):
                row, place, inside = self._item(iteration, rows)
                with when(inside):
                    item = vectors.cast(source[vectors.at(iteration)], "float32")
                    store(tile, item, row, self._swizzled(row, place))

    # --- Steps of a tile ---

    def score(self, base: Expr, end: Expr) -> None:
        """Step 1: q.k, a chunk of channels at a time; the next one is loaded meanwhile.

        The first chunk of the next tile is under way afterwards.
        """
        shape = self.shape
        chunks = shape.columns // shape.chunk
        for index in range(shape.scored_rows):
            store(self.dots, SCORE_VEC4.splat(zero()), SCORE_VEC4.at(index))
        with T.serial(0, chunks) as chunk:
            barrier()
            self._stage()
            barrier()
            is_last = chunk + 1 == chunks
            following = bind(tirx.Select(is_last, 0, chunk + 1))
            self.load(following, base + tirx.Select(is_last, shape.keys, 0), end - 1)
            with T.serial(0, shape.chunk) as place:
                self._multiply(place)

    def _multiply(self, place: Expr) -> None:
        """Add one vector of channels to the thread's dot products."""
        shape, vectors = self.shape, self.shape.vectors
        vec4s, height = shape.vec4s, shape.threads // shape.vec4s
        keys = []
        for index in range(SCORE_VEC4.size):
            key = self.vec4 + index * vec4s
            twisting = key if vec4s % shape.chunk else self.vec4
            keys.append(bind(self.k_tile[key, self._swizzled(twisting, place)]))
        for index in range(shape.scored_rows):
            row = self._scored(index)
            twisting = row if height % shape.chunk else self.scored_row
            query = bind(self.q_tile[row, self._swizzled(twisting, place)])
            dots = SCORE_VEC4.lanes(self.dots[SCORE_VEC4.at(index)])
            sums = [vectors.dot(dot, query, key) for dot, key in zip(dots, keys, strict=True)]
            store(self.dots, SCORE_VEC4.join(sums), SCORE_VEC4.at(index))

    def _scored(self, index: int) -> Expr:
        return self.scored_row + index * (self.shape.threads // self.shape.vec4s)

    def weigh(self, base: Expr, end: Expr) -> None:
        """Step 2: turn the scores into weights, and note how to rescale.

        All threads of a row find its maximum; each makes the weights of its own keys.
        """
        shape = self.shape
        for index in range(shape.scored_rows):
            self._mask(index, base, end)
            first, *others = SCORE_VEC4.lanes(bind(self.dots[SCORE_VEC4.at(index)]))
            for lane in others:
                first = tirx.max(first, lane)
            store(self.tops, first, self._scored(index), self.vec4)
        barrier()
        for index, (highest, total) in enumerate(zip(self.highest, self.weight_sum, strict=True)):
            row = bind(self._scored(index))
            higher = LocalVar("float32", tirx.max(highest.value, self._over_row(row, tirx.max)))
            keep = LocalVar("float32", tirx.exp(highest.value - higher.value))
            highest.set(higher.value)
            scores = SCORE_VEC4.lanes(bind(self.dots[SCORE_VEC4.at(index)]))
            weights = SCORE_VEC4.join([_weight(score, higher.value) for score in scores])
            store(self.dots, weights, SCORE_VEC4.at(index))
            store(self.weights, self.dots[SCORE_VEC4.at(index)], row, SCORE_VEC4.at(self.vec4))
            total.set(
                total.value * keep.value + SCORE_VEC4.sum(bind(self.dots[SCORE_VEC4.at(index)]))
            )
            with when(self.vec4 == 0):
                store(self.factors, keep.value, row)
        barrier()

    def _over_row(self, row: Expr, combine: Operation) -> Expr:
        return tree([self.tops[row, vec4] for vec4 in range(self.shape.vec4s)], combine)

    def _mask(self, index: int, base: Expr, end: Expr) -> None:
        """Lower the scores of keys that the row does not see."""
        at = materialize(self.position(self.token(self._scored(index))))
        first = materialize(self.operator.first_key(at))
        scores = []
        for lane, dot in enumerate(SCORE_VEC4.lanes(self.dots[SCORE_VEC4.at(index)])):
            t = materialize(base + self.vec4 + lane * self.shape.vec4s)
            is_before = t < self.row_ends[index].value if self.row_ends else t <= at
            seen = is_before & (t >= first) & (t < end)
            scores.append(tirx.Select(seen, dot, f32(LOWEST)))
        store(self.dots, SCORE_VEC4.join(scores), SCORE_VEC4.at(index))

    def accumulate(self, base: Expr, last: Expr) -> None:
        """Step 3: add the weighted values to the thread's column of its rows."""
        shape, vectors = self.shape, self.shape.vectors
        for index in range(shape.own_rows):
            factor = bind(self.factors[self._own(index)])
            total = self.total[vectors.at(index)] * vectors.splat(factor)
            store(self.total, total, vectors.at(index))
        self._load_values(base, last)
        with T.serial(0, shape.vec4s) as vec4:
            items = local((SCORE_VEC4.size * vectors.size,))
            for lane in range(SCORE_VEC4.size):
                item = vectors.cast(self.v_next[vectors.at(lane)], "float32")
                store(items, item, vectors.at(lane))
            self._load_values(base + vec4 + 1, last)
            for index in range(shape.own_rows):
                weights = bind(self.weights[self._own(index), SCORE_VEC4.at(vec4)])
                for lane, weight in enumerate(SCORE_VEC4.lanes(weights)):
                    product = vectors.splat(weight) * items[vectors.at(lane)]
                    total = self.total[vectors.at(index)] + product
                    store(self.total, total, vectors.at(index))

    def _own(self, index: int) -> Expr:
        return self.group + index * self.shape.row_groups

    def _load_values(self, first: Expr, last: Expr) -> None:
        """Read the values of a vector of keys."""
        shape, vectors = self.shape, self.shape.vectors
        for lane in range(SCORE_VEC4.size):
            t = tirx.min(first + lane * shape.vec4s, last)
            slot = materialize(self.operator.cache.row(t))
            store(self.v_next, self.value[slot, self.g, vectors.at(self.column)], vectors.at(lane))

    def resume(self, out: Buffer, split_lse: Buffer) -> None:
        """Begin with the sums of the parts before; of a row's threads the first has its weights."""
        shape, vectors = self.shape, self.shape.vectors
        for index, (highest, total) in enumerate(zip(self.highest, self.weight_sum, strict=True)):
            place = self._place(bind(self._scored(index)))
            highest.set(split_lse[(*place, 0)])
            total.set(tirx.Select(self.vec4 == 0, split_lse[(*place, 1)], zero()))
        for index in range(shape.own_rows):
            token, head = self._place(bind(self._own(index)))
            mean = vectors.cast(
                out[token, vectors.at(head * shape.columns + self.column)], "float32"
            )
            weights = vectors.splat(bind(split_lse[token, head, 1]))
            store(self.total, mean * weights, vectors.at(index))

    def _place(self, row: Expr) -> tuple[Expr, Expr]:
        """Row of the chunk and query head of a row of the block."""
        return materialize(tirx.min(self.token(row), self.last_token)), bind(self.head(row))

    def store_lse(self, split_lse: Buffer) -> None:
        """Store the maxima and weights of the block's rows; after `finish`."""
        for index, highest in enumerate(self.highest):
            row = bind(self._scored(index))
            token, head = materialize(self.token(row)), bind(self.head(row))
            with when((self.vec4 == 0) & (token <= self.last_token)):
                store(split_lse, highest.value, token, head, 0)
                store(split_lse, self.factors[row], token, head, 1)

    def finish(self, out: Buffer) -> None:
        """Divide and store the block's rows."""
        shape, vectors = self.shape, self.shape.vectors
        for index, weight_sum in enumerate(self.weight_sum):
            store(self.tops, weight_sum.value, self._scored(index), self.vec4)
        barrier()
        with when(self.thread < shape.rows):
            store(self.factors, self._over_row(self.thread, add), self.thread)
        barrier()
        with when(self.thread < shape.row_groups * shape.columns):
            for index in range(shape.own_rows):
                row = bind(self._own(index))
                token = materialize(self.token(row))
                with when(token <= self.last_token):
                    total = self.total[vectors.at(index)] / vectors.splat(bind(self.factors[row]))
                    result = vectors.cast(total, self.operator.out_dtype)
                    column = self.head(row) * shape.columns + self.column
                    store(out, result, token, vectors.at(column))


def _weight(score: Expr, highest: Expr) -> Expr:
    return tirx.Select(score > f32(LOWEST), tirx.exp(score - highest), zero())


def make_prefill_attention(operator: PrefillAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Causal (and sliding) attention of all positions of a chunk, and that of pictures.

    Grid: heads / heads of a block x chunk rows / positions of a block. Shared: chunks of q and K in
    float32, the weights of a tile, and the maxima of its scores. V goes straight to registers.
    Reference: `PrefillAttention.definition`.
    """
    n, dim, heads = operator.rows.extent(), operator.head_dim, operator.heads
    shape, of_keys = chunk_shape(operator, spec), operator.part
    with function(scheduled=True) as build:
        q = build.arg("q", (n, heads * dim), "float32")
        cache = operator.cache.shape()
        key = build.arg("key", cache, operator.cache_dtype)
        value = build.arg("value", cache, operator.cache_dtype)
        positions = build.arg("positions", (4,), "int32")
        last_rows = operator.declare_last_rows(build, n)
        out = build.arg("out", (n, heads * dim), operator.out_dtype)
        split_lse = operator.declare_lse(build, n)
        tiles = tirx.floordiv(n + (shape.positions - 1), shape.positions)
        with launch(shape.threads, heads // shape.heads, tiles) as (part, tile, thread):
            first_head, first_token = bind(part * shape.heads), bind(tile * shape.positions)
            offset = materialize(of_keys.own(positions[2] - i32(n), key))
            g = bind(tirx.floordiv(first_head, heads // operator.kv_heads))
            last_token = bind(i32(n) - 1)
            lowest = materialize(of_keys.own(positions[0], key)) if operator.has_copies else None
            args = PrefillOperands(
                q, key, value, first_head, g, first_token, last_token, offset, last_rows, lowest
            )
            begin = materialize(operator.first_key(args.position(first_token)))
            # Last rows never fall: that of a block's last row is the furthest.
            end = args.key_end(first_token + (shape.positions - 1))
            if end is None:
                last = args.position(first_token + (shape.positions - 1))
                end = tirx.min(last + 1, of_keys.own(positions[2], key))
            end = materialize(of_keys.end(end, key))
            block = PrefillBlock(operator, shape, args, thread)
            # Rows whose positions are all before a part have no key in it.
            with nullcontext() if of_keys.is_first else when(begin < end):
                if split_lse is not None and not of_keys.is_first:
                    block.resume(out, split_lse)
                block.load(0, begin, end - 1)
                with T.serial(0, tirx.floordiv(end - begin + (shape.keys - 1), shape.keys)) as step:
                    base = materialize(begin + step * shape.keys)
                    block.score(base, end)
                    block.weigh(base, end)
                    block.accumulate(base, end - 1)
                block.finish(out)
                if split_lse is not None:
                    block.store_lse(split_lse)
    return build.result

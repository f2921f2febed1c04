"""One thread block of an attention of one position whose warps each go over keys of their own.

A warp reads a whole key at once, 8 channels a lane, and asks for the next keys before it uses those
it has: no thread waits for another warp before the end, where the warps' sums are put together.
Its division: warp_shape.py. The kernel: decode.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.split_attention import SplitArguments, SplitAttention
from gemma4_compile.operators.tir import LocalVar, bind, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index, Operation
from gemma4_compile.targets.kernels.attention.split_block import SplitBlock
from gemma4_compile.targets.kernels.attention.warp_shape import WARP_CHANNELS, WarpShape
from gemma4_compile.targets.kernels.common.blocks import (
    WARP,
    Block,
    add,
    barrier,
    from_lane,
    local,
    shared,
    strided,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.common.builtins import from_neighbour
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE, address, stream_piece


class WarpBlock(SplitBlock):
    """One block's operands, registers and shared memory."""

    def __init__(
        self, operator: SplitAttention, shape: WarpShape, args: SplitArguments, block: Block
    ) -> None:
        super().__init__(operator, shape, args, block)
        self.shape = shape
        heads, channels, dtype = shape.heads, shape.pieces * PIECE, operator.cache_dtype
        self.merged = shared((shape.warps, shape.merged_heads * operator.head_dim))
        self.tops, self.sums = (shared((shape.warps * heads,)) for _ in range(2))
        self.keys, self.values = (local((shape.keys * channels,), dtype) for _ in range(2))
        self.total = local((heads * channels,))
        self.slots = [LocalVar("int32", i32(0)) for _ in range(shape.keys)]
        self.highest = LocalVar("float32", f32(LOWEST))
        self.weight_sum = LocalVar("float32", zero())
        self.warp = bind(tirx.floordiv(block.thread, WARP))
        self.lane = bind(tirx.floormod(block.thread, WARP))
        self.own_key = bind(tirx.floormod(tirx.floordiv(self.lane, self._lanes), shape.keys))

    @property
    def _lanes(self) -> int:
        """Lanes that have the same score."""
        return WARP // self.shape.scores

    @property
    def _parts(self) -> list[tuple[int, int]]:
        """The vectors of a key that a lane has: piece, and channel within it."""
        halves = range(0, PIECE, self.vectors.size)
        return [(piece, half) for piece in range(self.shape.pieces) for half in halves]

    def _channel(self, piece: int) -> Expr:
        """The lane's first channel of a piece."""
        return piece * WARP_CHANNELS + self.lane * PIECE

    def query_place(self, place: Expr) -> Expr:
        """The first vectors of all lanes, then their second ones: neighbours have other banks."""
        vectors = PIECE // self.vectors.size  # of a piece
        piece, own = tirx.floordiv(place, WARP * vectors), tirx.floormod(place, WARP * vectors)
        lane, number = tirx.floordiv(own, vectors), tirx.floormod(own, vectors)
        return bind(piece * (WARP * vectors) + number * WARP + lane)

    # --- Loads ---

    def load_keys(self, begin: Expr, last: Expr, g: Expr) -> None:
        """Ask for the keys and values of the warp's first tile."""
        base = materialize(begin + self.warp * self.shape.keys)
        self._load_keys(base, last, g)
        self._load(self.value, self.values, g)

    def _load_keys(self, base: Expr, last: Expr, g: Expr) -> None:
        """Ask for the keys of a tile; those after `last` repeat it."""
        for index, slot in enumerate(self.slots):
            slot.set(self.operator.cache.row(tirx.min(base + index, last)))
        self._load(self.key, self.keys, g)

    def _load(self, source: Buffer, to: Buffer, g: Expr) -> None:
        pieces = self.shape.pieces
        for index, slot in enumerate(self.slots):
            for piece in range(pieces):
                place = address(source, slot.value, g, self._channel(piece))
                stream_piece(address(to, (index * pieces + piece) * PIECE), place)

    def _insert_new(self, base: Expr, position: Expr) -> None:
        """Put the new position's key and value, which the cache lacks, in their place."""
        if self.new is None:
            return
        vectors, pieces = self.vectors, self.shape.pieces
        with when(base + self.shape.keys > position):
            for index in range(self.shape.keys):
                with when(base + index == position):
                    for new, to in zip(self.new, (self.keys, self.values), strict=True):
                        for piece, half in self._parts:
                            item = new[vectors.from_channel(self._channel(piece) + half)]
                            at = (index * pieces + piece) * PIECE + half
                            store(to, item, vectors.from_channel(at))

    # --- Steps of a tile ---

    def _score(self) -> Expr:
        """q.k of the head and key that the lane is for; a key is converted once for all heads."""
        shape, vectors = self.shape, self.vectors
        dots = [LocalVar("float32", zero()) for _ in range(shape.scores)]
        for piece, half in self._parts:
            items = []
            for index in range(shape.keys):
                at = (index * shape.pieces + piece) * PIECE + half
                item = self.keys[vectors.from_channel(at)]
                items.append(bind(vectors.cast(item, "float32")))
            for h in range(shape.heads):
                first = piece * WARP_CHANNELS + half * WARP  # as `query_place` has them
                query = bind(self.query[h, vectors.from_channel(first + self.lane * vectors.size)])
                for index, item in enumerate(items):
                    dot = dots[h * shape.keys + index]
                    dot.set(vectors.dot(dot.value, query, item))
        distance = WARP // 2
        while len(dots) > 1:  # half of the lanes keep the first half of the sums, half the other
            half = len(dots) // 2
            is_upper = bind(tirx.bitwise_and(self.lane, distance) != 0)
            for low, high in zip(dots[:half], dots[half:], strict=True):
                given = LocalVar("float32", tirx.Select(is_upper, low.value, high.value))
                kept = bind(tirx.Select(is_upper, high.value, low.value))
                low.set(kept + from_neighbour(given.value, distance))
            dots, distance = dots[:half], distance // 2
        (score,) = dots
        while distance:
            score.set(score.value + from_neighbour(score.value, distance))
            distance //= 2
        return score.value

    def _weigh(self, score: Expr, is_seen: Expr) -> tuple[LocalVar, LocalVar]:
        """The weight of the lane's head and key, and the factor of that head's sums so far."""
        top = LocalVar("float32", tirx.Select(is_seen, score, f32(LOWEST)))
        distance = self._lanes
        while distance < WARP // self.shape.heads:
            top.set(tirx.max(top.value, from_neighbour(top.value, distance)))
            distance *= 2
        top.set(tirx.max(top.value, self.highest.value))
        keep = LocalVar("float32", tirx.exp(self.highest.value - top.value))
        weight = tirx.Select(is_seen, tirx.exp(score - top.value), zero())
        own = LocalVar("float32", weight)
        self.highest.set(top.value)
        self.weight_sum.set(self.weight_sum.value * keep.value + own.value)
        return own, keep

    def _accumulate(self, weight: LocalVar, keep: LocalVar) -> None:
        """Add the weighted values to the lane's channels."""
        shape, vectors = self.shape, self.vectors
        channels, lanes = shape.pieces * PIECE, WARP // shape.heads
        for h in range(shape.heads):
            factor = LocalVar("float32", from_lane(keep.value, h * lanes))
            with when(factor.value != f32(1.0)):  # as it is once the largest score has been seen
                for at in range(h * channels, (h + 1) * channels, vectors.size):
                    place = vectors.from_channel(at)
                    store(self.total, self.total[place] * vectors.splat(factor.value), place)
        for index in range(shape.keys):
            items = []
            for at in range(index * channels, (index + 1) * channels, vectors.size):
                item = self.values[vectors.from_channel(at)]
                items.append(bind(vectors.cast(item, "float32")))
            for h in range(shape.heads):
                first = (h * shape.keys + index) * self._lanes
                share = LocalVar("float32", from_lane(weight.value, first))
                for number, item in enumerate(items):
                    place = vectors.from_channel(h * channels + number * vectors.size)
                    added = vectors.splat(share.value) * item
                    store(self.total, self.total[place] + added, place)

    # --- The whole ---

    def start(self, split: Expr, first: Expr) -> None:
        """Begin the sums."""
        size = self.vectors.size
        for at in range(0, self.shape.heads * self.shape.pieces * PIECE, size):
            store(self.total, self.vectors.splat(zero()), self.vectors.from_channel(at))

    def run(self, begin: Expr, end: Expr, last: Expr, position: Expr, g: Expr) -> None:
        """Go over the warp's keys of [begin, end); the first tile is asked for already."""
        shape = self.shape
        step = shape.warps * shape.keys
        first = materialize(begin + self.warp * shape.keys)
        tiles = bind(tirx.floordiv(tirx.max(end - first, 0) + (step - 1), i32(step)))
        with T.serial(0, tiles) as tile:
            base = materialize(first + tile * step)
            self._insert_new(base, position)
            score = self._score()
            with when(tile + 1 < tiles):
                self._load_keys(base + step, last, g)
            is_seen = bind(self._is_seen(base + self.own_key, end))
            self._accumulate(*self._weigh(score, is_seen))
            with when(tile + 1 < tiles):
                self._load(self.value, self.values, g)

    def finish(self, split: Expr, first: Expr) -> None:
        """Add the warps' sums and store the split's results.

        `first` is the number of the block's first query head.
        """
        shape, vectors = self.shape, self.vectors
        heads, dim, channels = shape.heads, self.operator.head_dim, shape.pieces * PIECE
        o_partial, split_lse = self.args.splits
        distance, lanes = self._lanes, WARP // heads
        while distance < lanes:
            whole = self.weight_sum.value + from_neighbour(self.weight_sum.value, distance)
            self.weight_sum.set(whole)
            distance *= 2
        own = bind(self.warp * heads + tirx.floordiv(self.lane, lanes))
        is_first = bind(tirx.floormod(self.lane, lanes) == 0)
        with when(is_first):
            store(self.tops, self.highest.value, own)
        barrier()
        tops = [
            materialize(self._over_warps(self.tops, h, tirx.max), "float32") for h in range(heads)
        ]
        factors = [
            LocalVar("float32", tirx.exp(self.tops[self.warp * heads + h] - top))
            for h, top in enumerate(tops)
        ]
        of_lane = _chosen(factors, tirx.floordiv(self.lane, lanes))
        with when(is_first):
            store(self.sums, self.weight_sum.value * of_lane, own)
        at_once = shape.merged_heads
        for group in range(0, heads, at_once):
            if group:
                barrier()
            for number in range(at_once):
                scale = vectors.splat(factors[group + number].value)
                for piece, half in self._parts:
                    at = (group + number) * channels + piece * PIECE + half
                    place = vectors.from_channel(number * dim + self._channel(piece) + half)
                    scaled = self.total[vectors.from_channel(at)] * scale
                    store(self.merged, scaled, self.warp, place)
            barrier()
            with strided(self.block, at_once * shape.columns) as item:
                h = bind(group + tirx.floordiv(item, shape.columns))
                parts = [self.merged[warp, vectors.at(item)] for warp in range(shape.warps)]
                share = vectors.splat(self._share(bind(self._over_warps(self.sums, h, add))))
                mean = vectors.cast(tree(parts, add) * share, self.operator.cache_dtype)
                column = vectors.at(tirx.floormod(item, shape.columns))
                store(o_partial, mean, *self._place_of(split, first + h), column)
        with when(self.thread < heads):
            where = self._place_of(split, first + self.thread)
            store(split_lse, self._over_warps(self.tops, self.thread, tirx.max), *where, 0)
            store(split_lse, self._over_warps(self.sums, self.thread, add), *where, 1)

    def _over_warps(self, values: Buffer, h: Index, combine: Operation) -> Expr:
        """`combine` over the warps' values of a head."""
        heads = self.shape.heads
        return tree([values[warp * heads + h] for warp in range(self.shape.warps)], combine)


def _chosen(values: Sequence[LocalVar], index: Expr) -> Expr:
    """The value of an index that is known on the device."""
    chosen = values[-1].value
    for number in reversed(range(len(values) - 1)):
        chosen = tirx.Select(index == number, values[number].value, chosen)
    return bind(chosen)

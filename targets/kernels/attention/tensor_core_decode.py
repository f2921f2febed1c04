"""One thread block of an attention of one position on tensor cores: all query heads of a KV head.

The warps divide the channels: each multiplies its own of the queries by those of a tile of keys,
leaves its part of the scores in shared memory, finds the same weights as the others from all parts,
and multiplies them by its channels of the values, whose sums it keeps. Keys and values go from
memory to the registers of the threads that multiply them, and those of the next tile are asked for
as soon as there is room. Queries and weights are two float16 each, what is nearest and the rest,
so that nothing of a float32 is lost that counts: with up to eight query heads the rest of the
queries are the other eight rows of a product. Its division: tensor_core_decode_shape.py. The
kernel: decode.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.split_attention import SplitArguments, SplitAttention
from gemma4_compile.operators.tir import LocalVar, bind, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index, Operation
from gemma4_compile.targets.kernels.attention.split_block import SplitBlock
from gemma4_compile.targets.kernels.attention.tensor_core_decode_shape import (
    KEY_CHANNELS,
    LANES,
    VALUE_CHANNELS,
    TensorCoreDecodeShape,
)
from gemma4_compile.targets.kernels.common.blocks import (
    WARP,
    Block,
    add,
    barrier,
    from_lane,
    local,
    shared,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.common.builtins import from_neighbour
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    B_WORDS,
    PIECE,
    PIECE_WORDS,
    SUMS,
    K,
    N,
    address,
    copy_half_piece,
    copy_piece,
    multiply_add,
    packed,
    shared_pieces,
    stream_piece,
)

LANE_KEYS = K // LANES  # of 16 keys, those whose values a lane has


class TensorCoreBlock(SplitBlock):
    """One block's operands, registers and shared memory.

    Lane t has head t / 4 of scores and weights, keys t % 4 * 2 and the next of every eight; of
    sums it has heads t % 4 * 2 and the next, and eight neighbouring channels of every 64.
    """

    def __init__(
        self,
        operator: SplitAttention,
        shape: TensorCoreDecodeShape,
        args: SplitArguments,
        block: Block,
    ) -> None:
        super().__init__(operator, shape, args, block)
        self.shape = shape
        self.key_pieces = shape.channels // KEY_CHANNELS
        self.value_pieces = shape.channels // VALUE_CHANNELS
        self.sixteens = shape.keys // K
        words = shape.keys // N * self.key_pieces * PIECE_WORDS
        self.keys, self.values = (local((words,), "uint32") for _ in range(2))
        self.queries = local((shape.channels // K * A_WORDS,), "uint32")
        self.scores = local((self.sixteens * SUMS,))
        self.sums = local((2 * SUMS,))
        self.others = local((shape.warps * PIECE_WORDS,))
        self.weights = local((self.sixteens * 2 * B_WORDS,), "uint32")
        self.matrix = local((A_WORDS,), "uint32")
        self.total = local((shape.channels // K * SUMS,))
        self.partial = shared_pieces(2 * self.sixteens * shape.warps * WARP, "float32")
        self.highest = LocalVar("float32", f32(LOWEST))
        self.weight_sum = LocalVar("float32", zero())
        lane = bind(tirx.floormod(block.thread, WARP))
        self.lane, self.row = lane, bind(tirx.floordiv(lane, LANES))
        self.pair = bind(tirx.floormod(lane, LANES) * 2)
        self.warp = bind(tirx.floordiv(block.thread, WARP))
        self.first_channel = bind(self.warp * shape.channels)

    def _new(self) -> Buffer:
        size = self.vectors.size
        return shared((self.operator.head_dim // size,), f"{self.operator.cache_dtype}x{size}")

    def new_place(self, vector: Expr) -> Index:
        """An element of that memory is a vector, at a multiple of its size."""
        return vector

    # --- Loads ---

    def _key_channel(self, piece: int) -> Expr:
        """The first of the lane's eight channels of a key's piece."""
        return self.first_channel + (piece * KEY_CHANNELS) + self.pair * (PIECE // 2)

    def _value_channel(self, piece: int) -> Expr:
        return self.first_channel + piece * VALUE_CHANNELS + self.row * PIECE

    def _key_of_lane(self, base: Expr, eight: int) -> Expr:
        return base + eight * N + self.row

    def _value_key(self, base: Expr, index: int) -> Expr:
        """Of the keys whose values the lane has, one: two of every eight."""
        return base + index // 2 * N + index % 2 + self.pair

    def load_keys(self, begin: Expr, last: Expr, g: Expr) -> None:
        """Ask for the first tile's keys and values."""
        self._load_keys(begin, last, g)
        self._load_values(begin, last, g)

    def _load_keys(self, base: Expr, last: Expr, g: Expr) -> None:
        """Ask for a tile's keys; those after `last` repeat it."""
        for eight in range(self.shape.keys // N):
            key = self._key_of_lane(base, eight)
            slot = materialize(self.operator.cache.row(tirx.min(key, last)))
            for piece in range(self.key_pieces):
                place = address(self.key, slot, g, self._key_channel(piece))
                stream_piece(self._key_words(eight, piece), place)

    def _load_values(self, base: Expr, last: Expr, g: Expr) -> None:
        for index in range(self.shape.keys // LANES):
            key = self._value_key(base, index)
            slot = materialize(self.operator.cache.row(tirx.min(key, last)))
            for piece in range(self.value_pieces):
                place = address(self.value, slot, g, self._value_channel(piece))
                stream_piece(self._value_words(index, piece), place)

    def _key_words(self, eight: int, piece: int) -> Expr:
        return address(self.keys, (eight * self.key_pieces + piece) * PIECE_WORDS)

    def _value_words(self, index: int, piece: int) -> Expr:
        return address(self.values, (index * self.value_pieces + piece) * PIECE_WORDS)

    def _insert_new(self, base: Expr, position: Expr) -> None:
        """Put the new position's key and value, which the cache lacks, in their place."""
        if self.new is None:
            return
        new_key, new_value = self.new
        with when(base + self.shape.keys > position):
            for eight in range(self.shape.keys // N):
                with when(self._key_of_lane(base, eight) == position):
                    for piece in range(self.key_pieces):
                        at = (eight * self.key_pieces + piece) * PIECE_WORDS
                        _copy_new(self.keys, at, new_key, self._key_channel(piece))
            for index in range(self.shape.keys // LANES):
                with when(self._value_key(base, index) == position):
                    for piece in range(self.value_pieces):
                        at = (index * self.value_pieces + piece) * PIECE_WORDS
                        _copy_new(self.values, at, new_value, self._value_channel(piece))

    # --- Steps of a tile ---

    def _score(self, buffer: Expr) -> None:
        """The warp's channels of q.k, to shared memory."""
        for sixteen in range(self.sixteens):
            for index in range(2 * SUMS):
                store(self.sums, zero(), index)
            for piece in range(self.key_pieces):
                for half in range(2):
                    for eight in range(2):
                        at = ((sixteen * 2 + eight) * self.key_pieces + piece) * PIECE_WORDS
                        multiply_add(
                            address(self.sums, eight * SUMS),
                            address(self.queries, (piece * 2 + half) * A_WORDS),
                            address(self.keys, at + half * B_WORDS),
                        )
            for index in range(SUMS):
                at = index // 2 * SUMS + index % 2
                store(self.scores, self.sums[at] + self.sums[at + 2], sixteen * SUMS + index)
            place = self._part(buffer, sixteen, self.warp)
            copy_piece(place, address(self.scores, sixteen * SUMS))

    def _part(self, buffer: Expr, sixteen: int, warp: Expr | int) -> Expr:
        """Place of a warp's part of the lane's scores."""
        row = (buffer * self.sixteens + sixteen) * self.shape.warps + warp
        return address(self.partial, row * WARP + self.lane)

    def _add_parts(self, buffer: Expr) -> None:
        for sixteen in range(self.sixteens):
            for warp in range(self.shape.warps):
                at = address(self.others, warp * PIECE_WORDS)
                copy_piece(at, self._part(buffer, sixteen, warp))
            for index in range(SUMS):
                parts = [self.others[w * PIECE_WORDS + index] for w in range(self.shape.warps)]
                store(self.scores, tree(parts, add), sixteen * SUMS + index)

    def _weigh(self, base: Expr, end: Expr) -> LocalVar:
        """Turn the scores into weights; the factor of the sums so far of the lane's head."""
        count = self.sixteens * SUMS
        seen = [bind(self._is_seen(self._value_key(base, index), end)) for index in range(count)]
        for index, is_seen in enumerate(seen):
            store(self.scores, tirx.Select(is_seen, self.scores[index], f32(LOWEST)), index)
        top = LocalVar("float32", tree([self.scores[index] for index in range(count)], tirx.max))
        _over_row(top, tirx.max)
        top.set(tirx.max(top.value, self.highest.value))
        keep = LocalVar("float32", tirx.exp(self.highest.value - top.value))
        self.highest.set(top.value)
        for index, is_seen in enumerate(seen):
            weight = tirx.exp(self.scores[index] - top.value)
            store(self.scores, tirx.Select(is_seen, weight, zero()), index)
        weights = tree([self.scores[index] for index in range(count)], add)
        self.weight_sum.set(self.weight_sum.value * keep.value + weights)
        for word in range(count // 2):
            pair = [self.scores[word * 2 + i] for i in range(2)]
            rests = [weight - _rounded(weight) for weight in pair]
            at = word // B_WORDS * 2 * B_WORDS + word % B_WORDS
            store(self.weights, packed(*pair), at)
            store(self.weights, packed(*rests), at + B_WORDS)
        return keep

    def _of_pair(self, value: LocalVar) -> list[LocalVar]:
        """What the lanes of the two heads that the lane has sums of have."""
        lanes = [bind((self.pair + half) * LANES) for half in range(2)]
        return [LocalVar("float32", from_lane(value.value, lane)) for lane in lanes]

    def _keep(self, keep: LocalVar) -> None:
        """Multiply the sums so far."""
        first, second = self._of_pair(keep)
        with when((first.value != f32(1.0)) | (second.value != f32(1.0))):
            for index in range(self.shape.channels // K * SUMS):
                factor = second if index % 2 else first
                store(self.total, self.total[index] * factor.value, index)

    def _accumulate(self) -> None:
        """Add the weighted values to the warp's channels."""
        for sixteen in range(self.sixteens):
            for piece in range(self.value_pieces):
                for word in range(PIECE_WORDS):
                    at = [
                        ((sixteen * LANE_KEYS + key) * self.value_pieces + piece) * PIECE_WORDS
                        + word
                        for key in range(LANE_KEYS)
                    ]
                    for half in range(2):
                        pair = self.values[at[half * 2]], self.values[at[half * 2 + 1]]
                        store(self.matrix, _low_halves(*pair), half * 2)
                        store(self.matrix, _high_halves(*pair), half * 2 + 1)
                    for part in range(2):
                        multiply_add(
                            address(self.total, (piece * PIECE_WORDS + word) * SUMS),
                            address(self.matrix, 0),
                            address(self.weights, (sixteen * 2 + part) * B_WORDS),
                        )

    # --- The whole ---

    def start(self, split: Expr, first: Expr) -> None:
        """Begin the sums, and bring the queries into the registers of what multiplies them."""
        for index in range(self.shape.channels // K * SUMS):
            store(self.total, zero(), index)
        heads, vectors = self.shape.heads, self.vectors
        row = bind(tirx.min(self.row, heads - 1))
        for piece in range(self.key_pieces):
            for quarter in range(PIECE // vectors.size):
                channel = self._key_channel(piece) + quarter * vectors.size
                values = vectors.lanes(bind(self.query[row, vectors.from_channel(channel)]))
                if heads < N:
                    values = [tirx.Select(self.row < heads, value, zero()) for value in values]
                for word in range(vectors.size // 2):
                    pair = [bind(value) for value in values[word * 2 : word * 2 + 2]]
                    rests = [value - _rounded(value) for value in pair]
                    at = (piece * 2 + quarter) * A_WORDS + word * 2
                    store(self.queries, packed(*pair), at)
                    store(self.queries, packed(*rests), at + 1)

    def run(self, begin: Expr, end: Expr, last: Expr, position: Expr, g: Expr) -> None:
        """Go over the keys of [begin, end); the first tile is asked for already."""
        keys = self.shape.keys
        tiles = bind(tirx.floordiv(end - begin + (keys - 1), i32(keys)))
        with T.serial(0, tiles) as tile:
            base = materialize(begin + tile * keys)
            buffer = materialize(tirx.floormod(tile, 2))
            self._insert_new(base, position)
            self._score(buffer)
            with when(tile + 1 < tiles):
                self._load_keys(base + keys, last, g)
            barrier()
            self._add_parts(buffer)
            self._keep(self._weigh(base, end))
            self._accumulate()
            with when(tile + 1 < tiles):
                self._load_values(base + keys, last, g)

    def finish(self, split: Expr, first: Expr) -> None:
        """Store the split's results. `first` is the number of the block's first query head."""
        heads = self.shape.heads
        o_partial, split_lse = self.args.splits
        _over_row(self.weight_sum, add)
        words = local((PIECE_WORDS,), "uint32")
        for half, weights in enumerate(self._of_pair(self.weight_sum)):
            share = materialize(self._share(weights.value), "float32")
            head = bind(self.pair + half)
            with when(head < heads):
                for piece in range(self.value_pieces):
                    for word in range(PIECE_WORDS):
                        at = (piece * PIECE_WORDS + word) * SUMS + half
                        store(
                            words, packed(self.total[at] * share, self.total[at + 2] * share), word
                        )
                    place = (*self._place_of(split, first + head), self._value_channel(piece))
                    copy_piece(address(o_partial, *place), address(words, 0))
        with when((self.thread < heads * LANES) & (self.pair == 0)):
            where = self._place_of(split, first + self.row)
            store(split_lse, self.highest.value, *where, 0)
            store(split_lse, self.weight_sum.value, *where, 1)


def _copy_new(to: Buffer, at: int, new: Buffer, channel: Expr) -> None:
    """Copy a piece of a new key or value, an array of half pieces, to registers."""
    for half in range(2):
        place = address(new, tirx.floordiv(channel, PIECE // 2) + half)
        copy_half_piece(address(to, at + half * (PIECE_WORDS // 2)), place)


def _over_row(value: LocalVar, combine: Operation) -> None:
    """Combine the values of the lanes of a head; each gets the result."""
    for distance in (1, 2):
        value.set(combine(value.value, from_neighbour(value.value, distance)))


def _rounded(value: Expr) -> Expr:
    return value.astype("float16").astype("float32")


def _low_halves(first: Expr, second: Expr) -> Expr:
    """The lower halves of two words."""
    low, shift = tirx.const(0xFFFF, "uint32"), tirx.const(16, "uint32")
    return tirx.bitwise_or(tirx.bitwise_and(first, low), tirx.shift_left(second, shift))


def _high_halves(first: Expr, second: Expr) -> Expr:
    """The upper halves of two words."""
    high, shift = tirx.const(0xFFFF0000, "uint32"), tirx.const(16, "uint32")
    return tirx.bitwise_or(tirx.shift_right(first, shift), tirx.bitwise_and(second, high))

"""One thread block of an attention of one position, or of a few: what it does with its keys.

Its division: decode_shape.py. The kernels: decode.py, few_rows.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.split_attention import SplitArguments, SplitAttention
from gemma4_compile.operators.tir import LocalVar, bind, i32, materialize, store, when
from gemma4_compile.operators.types import Expr, Index, Operation
from gemma4_compile.targets.kernels.attention.decode_shape import DecodeShape
from gemma4_compile.targets.kernels.attention.split_block import SplitBlock
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    add,
    barrier,
    local,
    shared,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.tiles.loaders import below


class DecodeBlock(SplitBlock):
    """One block's operands, registers and shared memory."""

    def __init__(
        self, operator: SplitAttention, shape: DecodeShape, args: SplitArguments, block: Block
    ) -> None:
        super().__init__(operator, shape, args, block)
        self.shape, thread = shape, block.thread
        heads, dim, dtype = shape.heads, operator.head_dim, operator.cache_dtype
        self.partial = shared((heads * shape.keys * (shape.lanes + 1),))  # flat: TVM drops a pad
        self.tops, self.weights = shared((heads * shape.packs,)), shared((heads * shape.keys,))
        self.factors = shared((heads,))
        self.spare = [shared((heads, dim)) for _ in range(shape.spare_groups)]
        size = self.vectors.size
        self.keys = local((shape.iterations * shape.chunks * size,), dtype)
        self.values = local((shape.own_keys * size,), dtype)
        self.total = local((heads * size,))
        self.highest, self.weight_sum = (
            LocalVar("float32", f32(LOWEST)),
            LocalVar("float32", zero()),
        )
        self.lane = bind(below(thread, shape.lanes))
        self.key_of_thread = bind(tirx.floordiv(thread, shape.lanes))
        self.column = bind(below(thread, shape.columns))
        # Threads beyond the last group repeat its work and drop it.
        self.group = bind(tirx.floordiv(thread, shape.columns))
        self.scored = heads * shape.packs  # threads that own one vector of scores each
        self.scores = local((shape.pack.size,))

    # --- Loads ---

    def _share_of_key(self, chunk: int) -> Index:
        """One of the thread's vectors of a key; lanes beyond the last repeat it."""
        item = chunk * self.shape.lanes + self.lane
        is_ragged = (chunk + 1) * self.shape.lanes > self.shape.columns
        return self.vectors.at(tirx.min(item, self.shape.columns - 1) if is_ragged else item)

    def load_keys(self, base: Expr, last: Expr, g: Expr) -> None:
        """The thread's slice of a tile's keys; those after `last` repeat it."""
        shape = self.shape
        for iteration in range(shape.iterations):
            t = base + iteration * shape.keys_at_once + self.key_of_thread
            slot = materialize(self.operator.cache.row(tirx.min(t, last)))
            for chunk in range(shape.chunks):
                item = self.key[slot, g, self._share_of_key(chunk)]
                store(self.keys, item, self.vectors.at(iteration * shape.chunks + chunk))

    def _value_position(self, base: Expr, index: int) -> Expr:
        size = self.shape.pack.size
        return base + self._first_pack() + index // size + index % size * self.shape.packs

    def _first_pack(self) -> Expr:
        """The first vector of weights of the thread's group."""
        shape = self.shape
        group = tirx.min(self.group, shape.key_groups - 1)
        return group * (shape.own_keys // shape.pack.size)

    def load_values(self, base: Expr, last: Expr, g: Expr) -> None:
        """The thread's column of its slice of a tile's values."""
        for index in range(self.shape.own_keys):
            t = tirx.min(self._value_position(base, index), last)
            slot = materialize(self.operator.cache.row(t))
            item = self.value[slot, g, self.vectors.at(self.column)]
            store(self.values, item, self.vectors.at(index))

    def insert_new(self, base: Expr, position: Expr) -> None:
        """Put the new position's key and value, which the cache lacks, in their place."""
        if self.new is None:
            return
        shape = self.shape
        new_key, new_value = self.new
        with when(base + shape.keys > position):
            for iteration in range(shape.iterations):
                t = base + iteration * shape.keys_at_once + self.key_of_thread
                with when(t == position):
                    for chunk in range(shape.chunks):
                        item = new_key[self._share_of_key(chunk)]
                        store(self.keys, item, self.vectors.at(iteration * shape.chunks + chunk))
            for index in range(shape.own_keys):
                with when(self._value_position(base, index) == position):
                    item = new_value[self.vectors.at(self.column)]
                    store(self.values, item, self.vectors.at(index))

    # --- Steps of a tile ---

    def score(self) -> None:
        """Step 1: each thread's slice of q.k, for all heads; a key is converted once for them."""
        shape, vectors = self.shape, self.vectors
        pairs = [
            (h, iteration) for h in range(shape.heads) for iteration in range(shape.iterations)
        ]
        dots = {pair: LocalVar("float32", zero()) for pair in pairs}
        for chunk in range(shape.chunks):
            items = []
            for iteration in range(shape.iterations):
                item = self.keys[vectors.at(iteration * shape.chunks + chunk)]
                items.append(bind(vectors.cast(item, "float32")))
            for h in range(shape.heads):
                query = bind(self.query[h, vectors.at(chunk * shape.lanes + self.lane)])
                for iteration, item in enumerate(items):
                    dot = dots[h, iteration]
                    dot.set(vectors.dot(dot.value, query, item))
        for (h, iteration), dot in dots.items():
            row = h * shape.keys + iteration * shape.keys_at_once + self.key_of_thread
            store(self.partial, dot.value, row * (shape.lanes + 1) + self.lane)
        barrier()

    def weigh(self, base: Expr, end: Expr) -> None:
        """Step 2: one thread a head and vector of keys adds the slices and makes the weights."""
        shape, pack, thread = self.shape, self.shape.pack, self.thread
        mine = below(thread, self.scored)
        h, u = bind(tirx.floordiv(mine, shape.packs)), bind(below(thread, shape.packs))
        places = [u + index * shape.packs for index in range(pack.size)]
        with when(thread < self.scored):
            scores = []
            for place in places:
                first = bind((h * shape.keys + place) * (shape.lanes + 1))
                shares = [self.partial[first + lane] for lane in range(shape.lanes)]
                score = bind(tree(shares, add))
                scores.append(tirx.Select(self._is_seen(base + place, end), score, f32(LOWEST)))
            store(self.scores, pack.join(scores), pack.at(0))
            lanes = pack.lanes(bind(self.scores[pack.at(0)]))
            store(self.tops, tree(lanes, tirx.max), mine)
        barrier()
        with when(thread < self.scored):
            higher = bind(tirx.max(self.highest.value, self._over_head(h, tirx.max)))
            keep = bind(tirx.exp(self.highest.value - higher))
            weights = []
            for place, score in zip(places, pack.lanes(bind(self.scores[pack.at(0)])), strict=True):
                weight = tirx.exp(score - higher)
                weights.append(tirx.Select(self._is_seen(base + place, end), weight, zero()))
            store(self.scores, pack.join(weights), pack.at(0))
            added = bind(self.scores[pack.at(0)])
            store(self.weights, added, pack.at(mine))
            self.highest.set(higher)
            self.weight_sum.set(self.weight_sum.value * keep + pack.sum(added))
            with when(u == 0):
                store(self.factors, keep, h)
        barrier()

    def _over_head(self, h: Index, combine: Operation) -> Expr:
        """`combine` over the threads of one head."""
        first = bind(h * self.shape.packs)
        return bind(tree([self.tops[first + u] for u in range(self.shape.packs)], combine))

    def accumulate(self) -> None:
        """Step 3: add the weighted values to the thread's column."""
        shape, vectors, pack = self.shape, self.vectors, self.shape.pack
        for h in range(shape.heads):
            factor = bind(self.factors[h])
            store(self.total, self.total[vectors.at(h)] * vectors.splat(factor), vectors.at(h))
        for index in range(shape.own_keys // pack.size):
            items = []
            for lane in range(pack.size):
                item = self.values[vectors.at(index * pack.size + lane)]
                items.append(bind(vectors.cast(item, "float32")))
            for h in range(shape.heads):
                place = pack.at(h * shape.packs + self._first_pack() + index)
                weights = pack.lanes(bind(self.weights[place]))
                total = self.total[vectors.at(h)]
                for weight, item in zip(weights, items, strict=True):
                    total = total + vectors.splat(weight) * item
                store(self.total, total, vectors.at(h))

    # --- The whole ---

    def start(self, split: Expr, first: Expr) -> None:
        """Begin the sums, of which the first group of threads has those of the parts before."""
        shape, vectors = self.shape, self.vectors
        for h in range(shape.heads):
            store(self.total, vectors.splat(zero()), vectors.at(h))
        if self.operator.part.is_first:
            return
        o_partial, split_lse = self.args.splits
        mine = below(self.thread, self.scored)
        own, u = bind(tirx.floordiv(mine, shape.packs)), bind(below(self.thread, shape.packs))
        place = self._place_of(split, first + own)
        self.highest.set(split_lse[(*place, 0)])
        self.weight_sum.set(tirx.Select(u == 0, split_lse[(*place, 1)], zero()))
        with when(self.group == 0):
            for h in range(shape.heads):
                place = self._place_of(split, first + h)
                mean = vectors.cast(o_partial[(*place, vectors.at(self.column))], "float32")
                weights = vectors.splat(bind(split_lse[(*place, 1)]))
                store(self.total, mean * weights, vectors.at(h))

    def run(self, begin: Expr, end: Expr, last: Expr, position: Expr, g: Expr) -> None:
        """Go over the keys [begin, end); the first tile's keys are loaded already.

        The loads of a tile are under way while the one before is being used.
        """
        shape = self.shape
        tiles = bind(tirx.floordiv(end - begin + (shape.keys - 1), i32(shape.keys)))
        with T.serial(0, tiles) as tile:
            base = materialize(begin + tile * shape.keys)
            self.load_values(base, last, g)
            self.insert_new(base, position)
            self.score()
            self.weigh(base, end)
            with when(tile + 1 < tiles):
                self.load_keys(base + shape.keys, last, g)
            self.accumulate()

    def finish(self, split: Expr, first: Expr) -> None:
        """Add the groups' columns, through the memory of q, and store the split's results.

        `first` is the number of the block's first query.
        """
        shape, vectors, thread = self.shape, self.vectors, self.thread
        o_partial, split_lse = self.args.splits
        place = vectors.at(self.column)
        with when(thread < self.scored):
            store(self.tops, self.weight_sum.value, below(thread, self.scored))
        places = [self.query, *self.spare][: shape.key_groups - 1]
        for group, memory in enumerate(places, 1):
            with when(self.group == group):
                for h in range(shape.heads):
                    store(memory, self.total[vectors.at(h)], h, place)
        barrier()
        with when(self.group == 0):
            for h in range(shape.heads):
                total = self.total[vectors.at(h)]
                for memory in places:
                    total = total + memory[h, place]
                share = vectors.splat(self._share(self._over_head(h, add)))
                mean = vectors.cast(total * share, self.operator.cache_dtype)
                with self._if_exists(first + h):
                    store(o_partial, mean, *self._place_of(split, first + h), place)
        with when((thread < self.scored) & (tirx.floormod(thread, shape.packs) == 0)):
            own = bind(tirx.floordiv(below(thread, self.scored), shape.packs))
            with self._if_exists(first + own):
                where = self._place_of(split, first + own)
                store(split_lse, self.highest.value, *where, 0)
                store(split_lse, self._over_head(own, add), *where, 1)

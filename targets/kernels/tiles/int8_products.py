"""The product of a tile of packed x with a tile of W: sums of integers within a group of channels.

Both tiles lie in shared memory as words of four signed bytes, in one order of channels. Weights of
4 bits give words of even and of odd channels, so x is brought into that order when it is written.
Quantised x: operators/activation_quantization.py; the product: `Linear.definition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.packing import ONES, joined_halves
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import local, shared
from gemma4_compile.targets.kernels.common.builtins import dot4
from gemma4_compile.targets.kernels.common.weights import WeightReader, group_terms
from gemma4_compile.targets.kernels.tiles.loaders import (
    VECTOR,
    DenseLoader,
    Loader,
    Move,
    RowOf,
    below,
    joined,
    lane_of,
    put,
    splat,
    splat_word,
    transposed,
    vector,
)
from gemma4_compile.targets.kernels.tiles.products import TileProduct, TileShape

GROUP_WORDS = GROUP // WORD


class QuantizedLoader(DenseLoader):
    """Rows of quantised vectors; words beyond the last are some others, whose scale is 0.

    Parameters
    ----------
    interleaved : the order of bytes in `source`
    """

    def __init__(self, move: Move, source: Buffer, interleaved: bool) -> None:
        super().__init__(move, source)
        self._interleaved = interleaved

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        words = transposed([vector(self._raw, iteration * VECTOR + i) for i in range(VECTOR)])
        if not self._interleaved:
            return words
        result: list[Expr] = []
        for low, high in ((words[0], words[1]), (words[2], words[3])):
            result += joined_halves(bind(low), bind(high), splat_word)
        return result


class IntegerWeightLoader(Loader):
    """Rows of a stored matrix as words of signed bytes; beyond the last some others."""

    def __init__(self, move: Move, weights: WeightReader) -> None:
        super().__init__(move)
        self._weights = weights
        self._stored = VECTOR * weights.layout.bits // 8  # words of a row in a block
        self._raw = local((self._iterations * self._stored * VECTOR,), "uint32")

    def read_block(self, iteration: int, rows: Sequence[Expr], vec4: Expr) -> None:
        """See `Loader`."""
        layout = self._weights.layout
        last = layout.packing.words(layout.cols) // self._stored - 1

        def read(split: Sequence[Buffer], begin: int) -> None:
            at = bind(tirx.min(vec4, last) * self._stored)
            for i, row in enumerate(rows):
                for w in range(self._stored):
                    index = (iteration * self._stored + w) * VECTOR + i
                    store(self._raw, split[0][row - begin, at + w], index)

        self._weights.in_split(rows[0], read)

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        words, packing = self._stored_words(iteration), self._weights.layout.products
        return [part for run in packing.runs(words) for part in packing.centred(run, splat_word)]

    def _stored_words(self, iteration: int) -> list[Expr]:
        """A block's words of weights, each of all its rows."""
        first = iteration * self._stored
        return [
            bind(joined([self._raw[(first + w) * VECTOR + i] for i in range(VECTOR)]))
            for w in range(self._stored)
        ]


class ScaleLoader:
    """The scales of a tile's rows, one for each group of a step; 0 beyond the last group.

    Parameters
    ----------
    first : the first vector of the tile's scales in shared memory
    move : of the tile's rows; `skipped` are vectors
    groups : of a row of the tensor
    source : where the scales of W lie, or those of x: (any, groups) float32
    offsets : where the first vector of offsets lies, if W has minima: what a weight is at level 0
    """

    def __init__(
        self,
        shape: TileShape,
        first: int,
        move: Move,
        groups: int,
        source: WeightReader | Buffer,
        offsets: int | None = None,
    ) -> None:
        self._shape, self._first, self._groups, self._source = shape, first, groups, source
        self._across = move.tile.rows // VECTOR
        self._count = self._across * shape.iterations
        threads, thread, skipped, row_of = move.threads, move.thread, move.skipped, move.row_of
        self._iterations = -(-self._count // threads)
        mine = tirx.floormod(thread + (threads - skipped % threads), threads)
        self._items = [bind(mine + iteration * threads) for iteration in range(self._iterations)]
        self._row_vectors = [bind(below(item, self._across)) for item in self._items]
        self._rows = [
            [bind(row_of(row_vector * VECTOR + i)) for i in range(VECTOR)]
            for row_vector in self._row_vectors
        ]
        self._raw = local((self._iterations * VECTOR,))
        self._offsets = offsets
        self._raw_offsets = None if offsets is None else local((self._iterations * VECTOR,))

    def _group(self, step: Expr, iteration: int) -> Expr:
        return bind(
            step * self._shape.iterations + tirx.floordiv(self._items[iteration], self._across)
        )

    def read(self, step: Expr) -> None:
        """Read a step's scales into registers."""
        for iteration, rows in enumerate(self._rows):
            group = bind(tirx.min(self._group(step, iteration), self._groups - 1))

            if isinstance(self._source, WeightReader):
                self._source.in_split(rows[0], partial(self._read_scales, iteration, group))
            else:
                self._read_rows(iteration, group, self._source, 0)

    def _read_scales(
        self, iteration: int, group: Expr, split: Sequence[Buffer], begin: int
    ) -> None:
        if self._raw_offsets is None:
            self._read_rows(iteration, group, split[1], begin)
            return
        assert isinstance(self._source, WeightReader), "only a matrix has minima"
        layout = self._source.layout
        for i, row in enumerate(self._rows[iteration]):
            scale, minimum = group_terms(layout, split, bind(row - begin), group)
            assert minimum is not None, "the layout has minima"
            named, place = bind(scale), iteration * VECTOR + i
            store(self._raw, named, place)
            store(self._raw_offsets, named * f32(layout.packing.zero_point) - minimum, place)

    def _read_rows(self, iteration: int, group: Expr, scales: Buffer, begin: int) -> None:
        for i, row in enumerate(self._rows[iteration]):
            value = scales[row - begin, group].astype("float32")
            store(self._raw, value, iteration * VECTOR + i)

    def write(self, step: Expr, memory: Buffer) -> None:
        """Write what was read for a step."""
        self._write_vectors(step, memory, self._raw, self._first)
        if self._raw_offsets is not None and self._offsets is not None:
            self._write_vectors(step, memory, self._raw_offsets, self._offsets)

    def _write_vectors(self, step: Expr, memory: Buffer, raw: Buffer, first: int) -> None:
        for iteration, item in enumerate(self._items):
            values: Expr = joined([raw[iteration * VECTOR + i] for i in range(VECTOR)])
            if self._groups % self._shape.iterations:
                values = tirx.Select(
                    self._group(step, iteration) < self._groups, values, splat(f32(0.0))
                )
            if (iteration + 1) * self._shape.threads > self._count:
                with when(item < self._count):
                    put(memory, first + item, values)
            else:
                put(memory, first + item, values)


class IntegerTileProduct(TileProduct):
    """Both tiles as words of signed bytes, whose products are summed as integers."""

    _integers: Buffer

    def _clear_integers(self) -> None:
        for index in range(self._shape.vectors):
            put(self._integers, index, splat(tirx.const(0, "int32")))

    def _add_word(self, word: Expr, left: Sequence[Expr], right: Sequence[Expr]) -> None:
        integers = self._integers
        a = [bind(vector(self._memory, self._x.place(word, at))) for at in left]
        b = [bind(vector(self._memory, self._w.place(word, at))) for at in right]
        for i in range(self._shape.thread_m):
            mine = lane_of(a[i // VECTOR], i % VECTOR)
            self._add_to_sums(i, mine)
            for j, item in enumerate(b):
                index = i * len(b) + j
                products = joined([dot4(mine, lane_of(item, lane)) for lane in range(VECTOR)])
                put(integers, index, vector(integers, index) + products)

    def _add_to_sums(self, i: int, mine: Expr) -> None:
        """Take a word of the thread's row i of x, besides its products; here nothing."""


class Int8TileProduct(IntegerTileProduct):
    """Both tiles as words of signed bytes, with a scale for each row and group.

    Parameters
    ----------
    words, scales : packed x, (any, cols / 4) uint32 and (any, cols / GROUP) float32
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    """

    def __init__(
        self,
        shape: TileShape,
        words: Buffer,
        scales: Buffer,
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
    ) -> None:
        super().__init__(shape, thread, "uint32")
        threads, groups = shape.threads, int(scales.shape[1])
        self._scales = shared((shape.scale_vectors * VECTOR,))
        self._integers = local((shape.vectors * VECTOR,), "int32")
        self._x_sums = local((shape.thread_m,), "int32") if shape.minima else None
        x, w = self._x, self._w
        self._w_scales = x.rows // VECTOR * shape.iterations
        self._w_offsets = self._w_scales + w.rows // VECTOR * shape.iterations
        move_x = Move(x, thread, threads, 0, row_of_x)
        move_w = Move(w, thread, threads, x.blocks, row_of_w)
        self._loaders = (
            QuantizedLoader(move_x, words, weights.layout.products.interleaved),
            IntegerWeightLoader(move_w, weights),
        )
        moved, first = x.blocks + w.blocks, self._w_scales
        self._scale_loaders = (
            ScaleLoader(shape, 0, replace(move_x, skipped=moved), groups, scales),
            ScaleLoader(
                shape,
                first,
                replace(move_w, skipped=moved + first),
                groups,
                weights,
                self._w_offsets if shape.minima else None,
            ),
        )

    def _read(self, step: Expr) -> None:
        super()._read(step)
        following = bind(step)
        for loader in self._scale_loaders:
            loader.read(following)

    def _write(self, step: Expr) -> None:
        super()._write(step)
        for loader in self._scale_loaders:
            loader.write(step, self._scales)

    def _multiply(self) -> None:
        shape = self._shape
        with T.serial(0, shape.iterations // shape.slices) as iteration:
            group = bind(iteration * shape.slices + self._slice)
            self._clear_integers()
            if self._x_sums is not None:
                for i in range(shape.thread_m):
                    store(self._x_sums, tirx.const(0, "int32"), i)
            with T.serial(0, GROUP_WORDS // VECTOR) as part:
                vec4 = bind(group * (GROUP_WORDS // VECTOR) + part)
                left, right = self._rows_of(vec4)
                self._each_item(vec4, lambda word: self._add_word(word, left, right))
            self._add_group(group)

    def _add_to_sums(self, i: int, mine: Expr) -> None:
        if self._x_sums is not None:
            ones = tirx.const(ONES, "uint32")
            store(self._x_sums, self._x_sums[i] + dot4(mine, ones), i)

    def _add_group(self, group: Expr) -> None:
        """Add a group's integers, scaled."""
        shape, sums = self._shape, self._sums
        across_m, across_n = shape.rows // VECTOR, shape.columns // VECTOR
        lanes_m, lanes_n = shape.rows // shape.thread_m, shape.columns // shape.thread_n
        a = [
            bind(vector(self._scales, group * across_m + self._m + part * lanes_m))
            for part in range(shape.thread_m // VECTOR)
        ]
        b = [
            bind(vector(self._scales, self._w_scales + group * across_n + self._n + part * lanes_n))
            for part in range(shape.thread_n // VECTOR)
        ]
        for i in range(shape.thread_m):
            scale = splat(lane_of(a[i // VECTOR], i % VECTOR))
            for j, item in enumerate(b):
                index = i * len(b) + j
                value = vector(self._integers, index).astype(f"float32x{VECTOR}")
                put(sums, index, vector(sums, index) + value * (scale * item))
        if self._x_sums is not None:
            self._add_offsets(group * across_n + self._n, lanes_n, a, self._x_sums)

    def _add_offsets(self, first: Expr, step: int, scales: Sequence[Expr], x_sums: Buffer) -> None:
        """Add a group's sums of x, scaled, times what weights are at level 0."""
        shape, sums = self._shape, self._sums
        offsets = [
            bind(vector(self._scales, self._w_offsets + first + part * step))
            for part in range(shape.thread_n // VECTOR)
        ]
        for i in range(shape.thread_m):
            scale = lane_of(scales[i // VECTOR], i % VECTOR)
            whole = splat(bind(x_sums[i].astype("float32") * scale))
            for j, offset in enumerate(offsets):
                index = i * len(offsets) + j
                put(sums, index, vector(sums, index) + whole * offset)

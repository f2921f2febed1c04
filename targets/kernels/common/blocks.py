"""Thread blocks: launch, barrier, reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import One, Rows
from gemma4_compile.operators.tir import LocalVar, bind, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index, Operation
from gemma4_compile.targets.kernels.common.builtins import from_neighbour

REDUCTION_COLUMNS = 16  # about the square root of a block's threads
VEC4 = 4
WARP = 32  # TVM's arguments of an exchange; the generators that know subgroups take no other
MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"  # as TVM's generator for CUDA calls it


@dataclass(frozen=True)
class Block:
    """A thread and its block, as the kernel's text is written for one thread of many.

    Attributes
    ----------
    thread : the thread's number in the block
    threads : of the block
    subgroup_width : neighbouring threads that exchange values without shared memory; 0 where their
        number is not known
    """

    thread: Expr
    threads: int
    subgroup_width: int


@contextmanager
def launch(
    threads: int, grid_x: Index, grid_y: Index | None = None
) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Open a grid.

    Yields blockIdx.x, blockIdx.y (0 if there is none) and threadIdx.x, all int32.
    """
    with T.launch_thread("blockIdx.x", grid_x) as block_x:
        if grid_y is None:
            with T.launch_thread("threadIdx.x", threads) as thread:
                yield block_x, tirx.const(0, "int32"), thread
        else:
            with (
                T.launch_thread("blockIdx.y", grid_y) as block_y,
                T.launch_thread("threadIdx.x", threads) as thread,
            ):
                yield block_x, block_y, thread


def resident(blocks: int) -> AbstractContextManager[None]:
    """Within a launch: a multiprocessor is to hold so many blocks, by their registers; CUDA alone.

    0: the kernel does not say it (targets/cuda_launch_bounds.py).
    """
    if blocks == 0:
        return nullcontext()
    frame: AbstractContextManager[None] = T.attr(
        tirx.const(0, "int32"), MIN_BLOCKS, tirx.const(blocks, "int32")
    )
    return frame


def several(rows: Rows, extent: Index) -> Index | None:
    """The second extent of a grid for rows: none for one row."""
    return None if isinstance(rows, One) else extent


def shared(shape: tuple[int, ...], dtype: str = "float32") -> Buffer:
    """Memory of the thread block."""
    return T.alloc_buffer(shape, dtype, scope="shared")


def local(shape: tuple[int, ...], dtype: str = "float32") -> Buffer:
    """Memory of the thread."""
    return T.alloc_buffer(shape, dtype, scope="local")


def barrier() -> None:
    """All threads of the block arrive, and see each other's shared memory."""
    T.evaluate(T.tvm_storage_sync("shared"))


def add(a: Expr, b: Expr) -> Expr:
    """Sum, as a reduction's operation."""
    return a + b


def tree(values: Sequence[Expr], combine: Operation) -> Expr:
    """All of some values, pairs of them first: the loads of the values do not wait for sums."""
    while len(values) > 1:
        pairs = [combine(*values[i : i + 2]) for i in range(0, len(values) - 1, 2)]
        values = [*pairs, *values[len(pairs) * 2 :]]
    return values[0]


def sum_over_subgroup(value: Expr, lanes: int, operation: Operation = add) -> LocalVar:
    """Combine a float32 of some neighbouring threads, at most a subgroup; all threads call it.

    The result is right in the first of each `lanes`. TVM's calls are opaque to its passes, so that
    none of them moves one under a condition, where threads would be missing.
    """
    total = LocalVar("float32", value)
    while lanes > 1:
        lanes //= 2
        total.set(operation(total.value, _from_thread("down", total.value, lanes)))
    return total


def max_over_neighbours(value: Expr, count: int) -> Expr:
    """The largest of `count` neighbouring threads, a part of a subgroup; each of them gets it."""
    top = LocalVar("float32", value)
    while count > 1:
        count //= 2
        top.set(tirx.max(top.value, from_neighbour(top.value, count)))
    return bind(top.value)


def from_lane(value: Expr, lane: Index) -> Expr:
    """The float32 of one thread of a warp; each of its threads gets it."""
    return _from_thread("that", value, lane)


def _from_thread(where: str, value: Expr, number: Index) -> Expr:
    """The value of the thread `number` further down a subgroup, or of the one of that number."""
    shuffle = T.tvm_warp_shuffle_down if where == "down" else T.tvm_warp_shuffle
    return shuffle(T.tvm_warp_activemask(), value, number, WARP, WARP)


class BlockReduction:
    """Reduces one float32 of every thread; every thread gets the result.

    In shared memory, in two steps: columns, then their row. Three barriers, whatever the number of
    threads. Where subgroups are known, within them first, and then over their results, in columns
    only if they are many: two or three barriers, or none if there is one subgroup.
    """

    def __init__(self, block: Block) -> None:
        threads = block.threads
        assert threads & (threads - 1) == 0, "columns of equal length"
        self.thread, self.threads = block.thread, threads
        self._simd = min(block.subgroup_width, threads)
        if self._simd == threads:
            return
        self._results = threads // max(self._simd, 1)
        self._columns = min(self._results, REDUCTION_COLUMNS)
        needs_columns = not self._simd or self._results > self._columns
        self._memory = shared((self._results,)) if needs_columns else None
        self._row = shared((self._columns,))

    @staticmethod
    def nbytes(threads: int) -> int:
        """Shared memory of the form without subgroups."""
        return 4 * (threads + min(threads, REDUCTION_COLUMNS))

    def __call__(self, value: Expr, operation: Operation = add) -> Expr:
        """Reduce `value` over the block."""
        result, place = value, self.thread
        if self._simd:
            subgroup = sum_over_subgroup(value, self._simd, operation)
            if self._simd == self.threads:
                subgroup.set(_from_thread("first", subgroup.value, 0))
                return bind(subgroup.value)
            result, place = subgroup.value, tirx.floordiv(self.thread, self._simd)
        barrier()  # an earlier result may still be being read
        with self._first_of_subgroup():
            store(self._row if self._memory is None else self._memory, result, place)
        if self._memory is not None:
            self._reduce_columns(operation)
        barrier()
        total = LocalVar("float32", self._row[0])
        with T.serial(1, self._columns) as step:
            total.set(operation(total.value, self._row[step]))
        return bind(total.value)

    def _first_of_subgroup(self) -> AbstractContextManager[None]:
        if not self._simd:
            return nullcontext()
        return when(tirx.floormod(self.thread, self._simd) == 0)

    def _reduce_columns(self, operation: Operation) -> None:
        memory, thread, columns = self._memory, self.thread, self._columns
        assert memory is not None, "as many results as columns need none"
        barrier()
        with when(thread < columns):
            column = LocalVar("float32", memory[thread])
            with T.serial(1, self._results // columns) as step:
                column.set(operation(column.value, memory[step * columns + thread]))
            store(self._row, column.value, thread)


class BlockSums:
    """Sums some float32 of every thread over the block: every thread gets the sums.

    Where subgroups are known, within them first. Otherwise four at a time as a vector in shared
    memory, columns first, then their row. May be called more than once.

    Parameters
    ----------
    at_once : vectors that have memory of their own; more take iterations
    """

    def __init__(self, block: Block, at_once: int = 1) -> None:
        threads, self._block = block.threads, block
        self._columns = min(threads, REDUCTION_COLUMNS)
        assert threads % self._columns == 0, "columns of equal length"
        self._memories = [
            (shared((threads * VEC4,)), shared((self._columns * VEC4,)))
            for _ in range(0 if block.subgroup_width else at_once)
        ]

    @staticmethod
    def nbytes(threads: int, at_once: int = 1) -> int:
        """Shared memory of the form without subgroups."""
        return 4 * VEC4 * at_once * (threads + min(threads, REDUCTION_COLUMNS))

    def __call__(self, values: Sequence[Expr]) -> list[Expr]:
        """The sums, in the order of the values."""
        if self._block.subgroup_width:
            sums = sum_over_lanes(self._block, values, self._block.threads)
            return [bind(total) for total in sums]
        padded = [*values, *[zero()] * (-len(values) % VEC4)]
        vec4s = [padded[first : first + VEC4] for first in range(0, len(padded), VEC4)]
        step, totals = len(self._memories), []
        for first in range(0, len(vec4s), step):
            totals += self._sum_vec4s(vec4s[first : first + step])
        return totals[: len(values)]

    def _sum_vec4s(self, vec4s: Sequence[Sequence[Expr]]) -> list[Expr]:
        thread, columns, memories = self._block.thread, self._columns, self._memories[: len(vec4s)]

        def at(item: Index) -> Expr:
            return T.ramp(item * VEC4, 1, VEC4)

        # What an earlier call left has been read: each part is after the other's barrier.
        for (every, _), vec4 in zip(memories, vec4s, strict=True):
            store(
                every, tirx.Shuffle([bind(value) for value in vec4], list(range(VEC4))), at(thread)
            )
        barrier()
        with when(thread < columns):
            steps = range(self._block.threads // columns)
            for every, row in memories:
                parts = [every[at(step * columns + thread)] for step in steps]
                store(row, tree(parts, add), at(thread))
        barrier()
        totals = []
        for _, row in memories:
            total = bind(tree([row[at(item)] for item in range(columns)], add))
            totals += [bind(tirx.Shuffle([total], [lane])) for lane in range(VEC4)]
        return totals


class LaneSums:
    """Sums several float32 at once over groups of neighbouring threads.

    By halving, in shared memory; where subgroups are known, within them without it. Every value
    has memory of its own: TVM would see a race between them and refuse.
    """

    def __init__(self, block: Block, count: int, lanes: int) -> None:
        thread, threads = block.thread, block.threads
        self._thread, self._whole = thread, lanes == threads
        self._lane = thread if self._whole else bind(tirx.floormod(thread, lanes))
        self._lanes, self._simd = lanes, min(block.subgroup_width, lanes)
        places = threads // self._simd if self._simd else threads
        is_needed = self._simd < lanes
        self._memories = [shared((places,)) for _ in range(count)] if is_needed else []

    def __call__(self, values: Sequence[Expr]) -> list[Expr]:
        """The sums, right in each group's first thread; of a whole block, in every thread."""
        return self._of_subgroups(values) if self._simd else self._by_halving(values)

    def _of_subgroups(self, values: Sequence[Expr]) -> list[Expr]:
        thread, simd = self._thread, self._simd
        cells = [sum_over_subgroup(value, simd) for value in values]
        if simd == self._lanes:
            if self._whole:
                for cell in cells:
                    cell.set(_from_thread("first", cell.value, 0))
            return [cell.value for cell in cells]
        with when(tirx.floormod(thread, simd) == 0):
            for memory, cell in zip(self._memories, cells, strict=True):
                store(memory, cell.value, tirx.floordiv(thread, simd))
        barrier()
        count = self._lanes // simd
        first = 0 if self._whole else bind(tirx.floordiv(thread, self._lanes) * count)
        while count > REDUCTION_COLUMNS:  # of small subgroups
            assert count % 2 == 0, "halves of subgroups"
            count //= 2
            with when(self._lane < count):
                for memory in self._memories:
                    place = bind(first + self._lane)
                    store(memory, memory[place] + memory[place + count], place)
            barrier()
        return [tree([memory[first + i] for i in range(count)], add) for memory in self._memories]

    def _by_halving(self, values: Sequence[Expr]) -> list[Expr]:
        thread = self._thread
        for memory, value in zip(self._memories, values, strict=True):
            store(memory, value, thread)
        barrier()
        half = self._lanes // 2
        while half:
            with when(self._lane < half):
                for memory in self._memories:
                    store(memory, memory[thread] + memory[thread + half], thread)
            barrier()
            half //= 2
        return [memory[0 if self._whole else thread] for memory in self._memories]


def sum_over_lanes(block: Block, values: Sequence[Expr], lanes: int) -> list[Expr]:
    """`LaneSums`, once."""
    return LaneSums(block, len(values), lanes)(values)


@contextmanager
def strided(block: Block, count: int) -> Iterator[Expr]:
    """The items thread, thread + threads, ... below `count`."""
    thread, threads = block.thread, block.threads
    with T.serial(0, -(-count // threads)) as iteration:
        item = bind(iteration * threads + thread)
        if count % threads == 0:
            yield item
        else:
            with when(item < count):
                yield item


def power_of_two_at_most(value: int) -> int:
    """The largest power of two that is not above `value`."""
    return 1 << (value.bit_length() - 1)


def row_threads(width: int, limit: int) -> int:
    """Threads for a row of `width` values: a power of two, at most 256 and the target's limit."""
    return power_of_two_at_most(max(1, min(width, limit, 256)))


def zero() -> Expr:
    """0.0 in float32."""
    return f32(0.0)


def inverse_rms(squares: Expr, width: int, eps: float) -> Expr:
    """1 / rms of a row of `width` channels, of which this is the sum of squares."""
    return bind(materialize(tirx.rsqrt(squares / f32(width) + f32(eps)), "float32"))

"""What all kernels do with a thread block: launch it, wait for it, reduce over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.math import f32
from gemma4_compile.model_spec.operators.tir import Cell, let, store, when

REDUCTION_COLUMNS = 16  # about the square root of a block's threads


@contextmanager
def launch(threads: int, grid_x: Any, grid_y: Any = None) -> Iterator[tuple[Any, Any, Any]]:
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


def shared(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Memory of the thread block."""
    return T.alloc_buffer(shape, dtype, scope="shared")


def local(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Memory of the thread."""
    return T.alloc_buffer(shape, dtype, scope="local")


def barrier() -> None:
    """All threads of the block arrive, and see each other's shared memory."""
    T.evaluate(T.tvm_storage_sync("shared"))


def add(a: Any, b: Any) -> Any:
    """Sum, as a reduction's operation."""
    return a + b


def tree(values: Sequence[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """All of some values, pairs of them first: the loads of the values do not wait for sums."""
    while len(values) > 1:
        pairs = [combine(*values[i : i + 2]) for i in range(0, len(values) - 1, 2)]
        values = [*pairs, *values[len(pairs) * 2 :]]
    return values[0]


class BlockReduction:
    """Reduces one float32 of every thread in shared memory, in two steps: columns, then their row.

    Every thread gets the result. Three barriers, whatever the number of threads.
    """

    def __init__(self, thread: Any, threads: int) -> None:
        assert threads & (threads - 1) == 0, "columns of equal length"
        self._thread, self._threads = thread, threads
        self._columns = min(threads, REDUCTION_COLUMNS)
        self._memory, self._row = shared((threads,)), shared((self._columns,))

    def __call__(self, value: Any, operation: Callable[[Any, Any], Any] = add) -> Any:
        """Reduce `value` over the block."""
        memory, row, thread, columns = self._memory, self._row, self._thread, self._columns
        barrier()  # an earlier result may still be being read
        store(memory, value, thread)
        barrier()
        with when(thread < columns):
            column = Cell("float32", memory[thread])
            with T.serial(1, self._threads // columns) as step:
                column.set(operation(column.value, memory[step * columns + thread]))
            store(row, column.value, thread)
        barrier()
        total = Cell("float32", row[0])
        with T.serial(1, columns) as step:
            total.set(operation(total.value, row[step]))
        return let(total.value)


class LaneSums:
    """Sums several float32 at once over groups of neighbouring threads, by halving.

    Every value has memory of its own: TVM would see a race between them and refuse.
    """

    def __init__(self, count: int, thread: Any, threads: int, lanes: int) -> None:
        self._thread, self._whole = thread, lanes == threads
        self._lane = thread if self._whole else let(tirx.floormod(thread, lanes))
        self._lanes = lanes
        self._memories = [shared((threads,)) for _ in range(count)]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The sums, right in each group's first thread; of a whole block, in every thread."""
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


def sum_over_lanes(values: Sequence[Any], thread: Any, threads: int, lanes: int) -> list[Any]:
    """`LaneSums`, once."""
    return LaneSums(len(values), thread, threads, lanes)(values)


def sum_over_block(values: Sequence[Any], thread: Any, threads: int) -> list[Any]:
    """Sum several float32 of every thread at once; every thread gets the results."""
    return [let(total) for total in sum_over_lanes(values, thread, threads, threads)]


@contextmanager
def strided(thread: Any, threads: int, count: int) -> Iterator[Any]:
    """The items thread, thread + threads, ... below `count`."""
    with T.serial(0, -(-count // threads)) as turn:
        item = let(turn * threads + thread)
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


def zero() -> Any:
    """0.0 in float32."""
    return f32(0.0)

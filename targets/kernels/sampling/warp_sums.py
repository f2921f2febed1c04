"""What draws need of a thread block besides its barriers: running sums, and shared counts.

Both take warps of 32 threads. The calls are opaque to TVM; CUDA's text of them is in
targets/cuda_counts.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import LocalVar, bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import WARP, Block, barrier, shared

COUNT = "gemma4_add_shared_count"
ADD_MASS = "gemma4_add_mass"


def count_shared(memory: Buffer, place: Index, value: Expr) -> None:
    """Add an int32 to one of shared memory, as any other thread of the block may at that time."""
    T.evaluate(tirx.call_extern("void", COUNT, T.address_of(memory[place]), value))


def add_mass(masses: Buffer, *place: Index, value: Expr) -> None:
    """Add an int64 to one of an argument, as any other thread of the launch may at that time."""
    T.evaluate(tirx.call_extern("void", ADD_MASS, T.address_of(masses[place]), value))


@dataclass(frozen=True)
class RunningSum:
    """A thread's running sum over the block.

    Attributes
    ----------
    before : the sum of the threads before this one
    through : and of this one
    whole : of all threads
    """

    before: Expr
    through: Expr
    whole: Expr


def running_sum(block: Block, value: Expr, dtype: str) -> RunningSum:
    """Sum up an integer of every thread; all threads call it. It has barriers."""
    warps = block.threads // WARP
    lane = bind(tirx.floormod(block.thread, WARP))
    warp = bind(tirx.floordiv(block.thread, WARP))
    own = LocalVar(dtype, value)
    through = LocalVar(dtype, own.value)
    _sum_warp(through, lane, dtype, WARP)
    if warps == 1:
        whole = LocalVar(dtype, _from(through.value, i32(WARP - 1)))
        return RunningSum(through.value - own.value, through.value, whole.value)
    totals = shared((warps,), dtype)
    barrier()  # TVM may give it memory that is still being read
    with when(lane == WARP - 1):
        store(totals, through.value, warp)
    barrier()
    # Every warp sums up the totals of all.
    every = LocalVar(dtype, totals[tirx.min(lane, i32(warps - 1))])
    _sum_warp(every, lane, dtype, warps)
    whole = LocalVar(dtype, _from(every.value, i32(warps - 1)))
    ahead = LocalVar(dtype, _from(every.value, tirx.max(warp - 1, i32(0))))
    through.add(tirx.Select(warp > 0, ahead.value, tirx.const(0, dtype)))
    return RunningSum(through.value - own.value, through.value, whole.value)


def _sum_warp(cell: LocalVar, lane: Expr, dtype: str, count: int) -> None:
    """Running sums of the first `count` threads of a warp."""
    distance = 1
    while distance < count:
        mask = T.tvm_warp_activemask()
        other = LocalVar(dtype, T.tvm_warp_shuffle_up(mask, cell.value, distance, WARP, WARP))
        cell.add(tirx.Select(lane >= distance, other.value, tirx.const(0, dtype)))
        distance *= 2


def _from(value: Expr, lane: Expr) -> Expr:
    shuffled: Expr = T.tvm_warp_shuffle(T.tvm_warp_activemask(), value, lane, WARP, WARP)
    return shuffled

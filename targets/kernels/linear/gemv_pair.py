"""Two matrices times one vector each, in one launch: the first blocks have the first matrix.

Each half is the kernel of its matmul alone (gemv.py), with the same sums and results. A second
one of int8 groups has blocks of as many threads as the first's.
Definition: `LinearPair.definition` in gemma4_compile/operators/linear_pair.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.linear_pair import SECOND, LinearPair
from gemma4_compile.operators.tir import FunctionBuilder, bind, function, i32
from gemma4_compile.operators.types import Buffer, Index
from gemma4_compile.targets.kernels.common.blocks import Block, launch
from gemma4_compile.targets.kernels.linear.gemv import blocks_of, product_of, residence, run
from gemma4_compile.targets.kernels.linear.gemv_args import GemvArguments, GemvInputs
from gemma4_compile.targets.kernels.linear.int8_block import int8_shape, staged_bytes
from gemma4_compile.targets.spec import TargetSpec


class _Second(FunctionBuilder):
    """Declares arguments under the names of the second matmul."""

    def __init__(self, build: FunctionBuilder) -> None:
        self._build = build

    def arg(self, name: str, shape: Sequence[Index], dtype: str) -> Buffer:
        return self._build.arg(SECOND + name, shape, dtype)


def make_gemv_pair(operator: LinearPair, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: the blocks of the first, then those of the second.

    Loops of one iteration or none, as behind a router (prologues/router_blocks.py).
    """
    first, second = operator.first, operator.second
    with function(scheduled=True) as build:
        own = _Second(build)
        inputs = GemvInputs.declare(build, first)
        others = GemvInputs.declare(own, second, inputs.vector if operator.shared else None)
        left = product_of(first, GemvArguments.of(build, first, inputs), spec)
        begin, threads = blocks_of(left), left.threads
        right = product_of(second, GemvArguments.of(own, second, others), spec, threads)
        with (
            launch(threads, begin + blocks_of(right)) as (index, _, thread),
            residence(left),
        ):
            block = Block(thread, threads, spec.simd_width)
            is_first = bind(tirx.Select(index < begin, i32(1), i32(0)))
            with T.serial(0, is_first):
                run(left, index, block)
            with T.serial(0, i32(1) - is_first):
                run(right, bind(index - begin), block)
    return build.result


def fits_one_launch(first: Linear, second: Linear, spec: TargetSpec) -> bool:
    """Return whether the blocks of two matmuls can have as many threads, and memory for both."""
    threads, nbytes = _block_of(first, spec)
    others, more = _block_of(second, spec, threads)
    if second.is_int8 and int8_shape(second, spec, threads).lanes != int8_shape(second, spec).lanes:
        return False  # its sums would be others
    return threads == others and nbytes + more <= spec.max_shared_memory_bytes


def _block_of(operator: Linear, spec: TargetSpec, beside: int | None = None) -> tuple[int, int]:
    """Threads of a matmul's block, and the most shared memory that it takes."""
    if operator.is_int8:
        shape = int8_shape(operator, spec, beside)
        packed = 4 * shape.tile // 2 if operator.packed_out else 0
        return shape.threads, staged_bytes(operator, shape.threads) + shape.sum_bytes + packed
    tuning = spec.tuning.gemv
    staged = 0 if operator.is_plain and not operator.steps_in else 4 * operator.cols
    return tuning.threads, staged + 4 * tuning.threads * tuning.rows

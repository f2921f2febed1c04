"""Attention of a prefill chunk on tensor cores: blocks of a short chunk divide the keys.

Definition: `DividedAttention` in operators/divided_attention.py. The blocks are those of
tensor_core_chunk.py. Those of a short chunk each go over one split of the keys, and leave their
sums to a second launch. There are as many splits as fill the device.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.attention.group_rows import GroupArguments
from gemma4_compile.targets.kernels.attention.tensor_core_chunk import (
    LANES,
    ChunkBlock,
    attend,
    attend_whole,
    over_row,
)
from gemma4_compile.targets.kernels.attention.tensor_core_chunk_shape import (
    MOST_SPLITS,
    TensorCoreChunkShape,
    tensor_core_chunk_shape,
)
from gemma4_compile.targets.kernels.common.blocks import add, launch, local
from gemma4_compile.targets.kernels.tiles.tensor_cores import SUMS, N
from gemma4_compile.targets.spec import TargetSpec

COMBINE_THREADS = 128


def make_tensor_core_divided_chunk(operator: DividedAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """As `make_tensor_core_chunk_attention`; a short chunk's blocks have a split of the keys each.

    The host chooses by rows. Grid: KV heads * splits x rows of a KV head / rows of a block; then
    heads x rows. Shared: as there; then none. Reference: `PrefillAttention.definition`.
    """
    assert operator.window is None, "all rows see the first key"
    shape = tensor_core_chunk_shape(operator, spec)
    assert operator.blocks * shape.rows < (operator.places + 1) * operator.heads, "places for all"
    with function(scheduled=True) as build:
        args = GroupArguments.declare(build, operator)
        memory = operator.declare_memory(build)
        blocks = args.tiles(shape.rows) * operator.kv_heads
        splits = tirx.min(tirx.floordiv(operator.blocks, blocks), MOST_SPLITS)
        with T.If(splits > 1):
            with T.Then():
                _attend_splits(args, shape, splits, memory)
                _combine(args, splits, memory)
            with T.Else():
                attend_whole(args, shape)
    return build.result


def _attend_splits(
    args: GroupArguments, shape: TensorCoreChunkShape, splits: Expr, memory: list[Buffer]
) -> None:
    """Launch the kernel whose blocks leave the sums of their rows over one split of the keys."""
    grid = splits * args.operator.kv_heads, args.tiles(shape.rows)
    with launch(shape.threads, *grid) as (x, turn, thread):
        count = bind(i32(splits))
        g, split = bind(tirx.floordiv(x, count)), bind(tirx.floormod(x, count))
        rows, first_row, end_row = args.rows_of(g, turn, shape.rows)
        whole = count * shape.keys
        size = bind(tirx.floordiv(args.positions[2] + (whole - 1), whole) * shape.keys)
        begin = materialize(split * size)
        split_end = materialize(begin + size)
        block = ChunkBlock(rows, shape, thread, first_row, split_end)
        _, seen_by_all = rows.seen_by(rows.token(first_row))
        _, seen = rows.seen_by(rows.token(first_row + (shape.rows - 1)))
        end = materialize(tirx.min(seen, split_end))
        with when(begin < end):
            attend(block, args, (begin, end), (begin, tirx.min(seen_by_all, split_end)))
        _leave(block, memory, count, split, end_row)


def _leave(
    block: ChunkBlock, memory: list[Buffer], splits: Expr, split: Expr, end_row: Expr
) -> None:
    """Store the sums of the warp's rows before `end_row`; of a row without keys they weigh 0."""
    sums, weights = memory
    lane = bind(tirx.floormod(block.lane, LANES))
    first = bind(block.part * block.shape.channels + lane * 2)
    for half, (row, highest, total) in enumerate(
        zip(block.rows, block.highest, block.weight_sums, strict=True)
    ):
        over_row(total, add)
        with when(row < end_row):
            place = bind(block.rows_of.token(row) * splits + split)
            head = bind(block.rows_of.head(row))
            for j in range(block.shape.channels // N):
                for i in range(2):
                    value = block.totals[j * SUMS + half * 2 + i]
                    store(sums, value, place, head, first + (j * N + i))
            with when((block.part == 0) & (lane == 0)):
                store(weights, highest.value, place, head, 0)
                store(weights, total.value, place, head, 1)


def _combine(args: GroupArguments, splits: Expr, memory: list[Buffer]) -> None:
    """Launch the kernel that puts the splits of a head in a row together."""
    operator, (sums, weights) = args.operator, memory
    dim, out = operator.head_dim, args.out
    channels = -(-dim // COMBINE_THREADS)
    with launch(COMBINE_THREADS, operator.heads, args.count) as (head, row, thread):
        count = bind(i32(splits))
        first = bind(row * count)
        highest, total = LocalVar("float32", f32(LOWEST)), LocalVar("float32", f32(0.0))
        with T.serial(0, count) as split:
            highest.set(tirx.max(highest.value, weights[first + split, head, 0]))
        results = local((channels,))
        for index in range(channels):
            store(results, f32(0.0), index)
        own = [bind(tirx.min(thread + i * COMBINE_THREADS, dim - 1)) for i in range(channels)]
        with T.serial(0, count) as split:
            place = bind(first + split)
            share = materialize(tirx.exp2(weights[place, head, 0] - highest.value), "float32")
            total.set(total.value + weights[place, head, 1] * share)
            for index, channel in enumerate(own):
                store(results, results[index] + sums[place, head, channel] * share, index)
        for index in range(channels):
            channel = bind(thread + index * COMBINE_THREADS)
            with when(channel < dim):
                value = (results[index] / total.value).astype(out.dtype)
                store(out, value, row, head * dim + channel)

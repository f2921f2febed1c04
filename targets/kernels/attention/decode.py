"""Flash decoding: attention of one position, or of one in each of several sequences.

Its keys are split among thread blocks.

A block goes over its keys for several query heads of one KV head, so that K and V are read once for
all of them. Definition: gemma4_compile/operators/split_attention.py. The splits are put together in
combine.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeAlias

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.split_attention import SplitArguments, SplitAttention
from gemma4_compile.operators.tir import OneRow, bind, function, i32, materialize, when
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.targets.kernels.attention.column_norms import ColumnNorms
from gemma4_compile.targets.kernels.attention.decode_block import DecodeBlock
from gemma4_compile.targets.kernels.attention.decode_norms import DecodeNorms
from gemma4_compile.targets.kernels.attention.decode_shape import DecodeShape, decode_shape
from gemma4_compile.targets.kernels.attention.tensor_core_decode import TensorCoreBlock
from gemma4_compile.targets.kernels.attention.tensor_core_decode_shape import (
    TensorCoreDecodeShape,
    tensor_core_decode_shape,
)
from gemma4_compile.targets.kernels.attention.warp_block import WarpBlock
from gemma4_compile.targets.kernels.attention.warp_shape import (
    FEWEST_JOINT,
    WarpShape,
    warp_shape,
)
from gemma4_compile.targets.kernels.common.blocks import Block, launch, resident
from gemma4_compile.targets.kernels.common.builtins import wait_for_launches
from gemma4_compile.targets.spec import TargetSpec

Shape: TypeAlias = DecodeShape | WarpShape | TensorCoreDecodeShape


def make_decode_attention(operator: SplitAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Online softmax over one split's keys, for some query heads of one KV head.

    Where the launch norms and rotates q, k and v, every block makes the new key and value for
    itself; the first block of the KV head in the split that ends with the new position writes them
    to the cache, which nobody else reads there. Grid: splits x heads / heads of a block, times rows
    of several sequences, whose blocks each do what those of one do. Of one of several sequences'
    rows there is no launch where there is no such row. Shared: q, the threads' slices
    of the scores, scores and weights; a new key and value. Reference: `SplitAttention.definition`.
    """
    threads_share = decode_shape(operator, spec)
    warps, matrices = warp_shape(operator, spec), tensor_core_decode_shape(operator, spec)
    with function(scheduled=True) as build:
        args = operator.declare(build)
        if matrices is not None:
            _attend(operator, spec, args, matrices)
        elif warps is None:
            _attend(operator, spec, args, threads_share)
        elif warps.rows <= FEWEST_JOINT:
            _attend(operator, spec, args, warps)
        else:
            with T.If(args.n < warps.rows):
                with T.Then():
                    _attend(operator, spec, args, threads_share)
                with T.Else():
                    _attend(operator, spec, args, warps)
    return build.result


def _attend(
    operator: SplitAttention,
    spec: TargetSpec,
    args: SplitArguments,
    shape: Shape,
) -> None:
    """Launch the kernel of a shape."""
    owns, held = operator.owns_kv, 0 if isinstance(shape, DecodeShape) else shape.resident
    slices = operator.heads // operator.kv_heads // shape.heads  # that share a KV head
    # Positions and the keys before the new one are of earlier calls. A later part of a cache has
    # blocks that do nothing, which would not wait.
    waits = spec.tuning.decode_attention.early_keys and operator.part.is_first
    parts = operator.heads // shape.heads
    grid = operator.splits, parts * args.n if operator.is_joint else parts
    with (
        _if_exists(args),
        launch(shape.threads, *grid) as (split, part, thread),
        resident(held),
    ):
        i: Index = 0
        if operator.is_joint:
            i, part = bind(tirx.floordiv(part, parts)), bind(tirx.floormod(part, parts))
            args = _of_row(operator, args, i)
        elif args.row is not None:
            i = bind(i32(args.row))
            args = _of_row(operator, args, i)
        last_position = operator.last_position(args.positions, i)
        position = materialize(operator.part.own(last_position, args.key))
        step = None
        if operator.normed is not None:
            step = materialize(operator.step(args.positions, 1, i32(i)))
        bounds = operator.split_range(position, split, args.key)
        begin, end = (materialize(bound) for bound in bounds)
        g, first = bind(tirx.floordiv(part, slices)), bind(part * shape.heads)
        block = Block(thread, shape.threads, spec.simd_width)
        attention: DecodeBlock | WarpBlock | TensorCoreBlock
        if isinstance(shape, TensorCoreDecodeShape):
            attention = TensorCoreBlock(operator, shape, args, block)
        elif isinstance(shape, WarpShape):
            attention = WarpBlock(operator, shape, args, block)
        else:
            attention = DecodeBlock(operator, shape, args, block)
        if owns:
            attention.make_new()
        last = materialize(tirx.max(tirx.min(end, position) - 1, 0)) if owns else end - 1
        norms: DecodeNorms | ColumnNorms | None = None
        if step is not None and isinstance(shape, TensorCoreDecodeShape):
            norms = ColumnNorms(operator, attention, step, i)
        elif step is not None:
            norms = DecodeNorms(operator, attention, step, i)
        with T.If(begin < end):
            with T.Then():
                if waits and not owns:
                    wait_for_launches()
                attention.load_keys(begin, last, g)
                if waits and owns:
                    wait_for_launches()
                attention.pad_query()
                if norms is None:
                    attention.load_query(first, i)
                else:
                    norms.run(first, g)
                attention.start(split, first)
                attention.run(begin, end, last, position, g)
                if owns:
                    is_writer = (end == position + 1) & (tirx.floormod(part, slices) == 0)
                    attention.store_new(is_writer, position, g)
                attention.finish(split, first)
            if operator.part.is_first:
                with T.Else():
                    if waits:
                        wait_for_launches()
                    attention.store_empty(split, first)


def _if_exists(args: SplitArguments) -> AbstractContextManager[None]:
    """On the host: whether the row that the launch is of is one of the call's."""
    return nullcontext() if args.row is None else when(args.row < args.n)


def _of_row(operator: SplitAttention, args: SplitArguments, i: Expr) -> SplitArguments:
    """The arguments of a row: the caches of its slot, and its own results."""
    o_partial, split_lse = args.splits
    return replace(operator.of_row(args, i), splits=(OneRow(o_partial, i), OneRow(split_lse, i)))

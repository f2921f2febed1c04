"""Attention of a picture's patches: their norms and rotation, and flash attention over all of them.

Definitions: gemma4_compile/operators/vision_attention.py. The attention is the prefill's
(prefill.py) with another mask: keys of padding are not seen, all others are.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.operators.vision_attention import PatchAttention, PatchQkNormRope
from gemma4_compile.targets.kernels.attention.patch_operands import patch_operands
from gemma4_compile.targets.kernels.attention.patch_shape import head_shape
from gemma4_compile.targets.kernels.attention.prefill import PrefillBlock, PrefillOperands
from gemma4_compile.targets.kernels.attention.prefill_shape import (
    SCORE_VEC4,
    ChunkShape,
    chunk_shape,
)
from gemma4_compile.targets.kernels.attention.tiled_patches import make_tiled_attention
from gemma4_compile.targets.kernels.common.blocks import Block as Threads
from gemma4_compile.targets.kernels.common.blocks import (
    add,
    barrier,
    inverse_rms,
    launch,
    shared,
    strided,
    tree,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

LANES = 8  # threads of a head


def make_patch_qk_norm_rope(operator: PatchQkNormRope, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: heads of a block x patches. Shared: three float32 a thread.

    Reference: `PatchQkNormRope.definition`.
    """
    n, dim, heads = symbolic_rows(None), operator.head_dim, operator.heads
    at_once = min(heads, spec.max_threads_per_block // LANES)
    threads, pairs = at_once * LANES, dim // 2
    with function(scheduled=True) as build:
        q, k, v = (build.arg(name, (n, operator.width), "float32") for name in "qkv")
        weights = [build.arg(f"{name}_norm", (dim,), "float32") for name in "qk"]
        rotary = build.arg("rotary", (n, pairs, 2), "float32")
        q_out = build.arg("q_out", (n, operator.width), "float32")
        k_out, v_out = (
            build.arg(f"{name}_out", (n, heads, dim), operator.kv_dtype) for name in "kv"
        )
        with launch(threads, -(-heads // at_once), n) as (part, i, thread):
            own = bind(part * at_once + thread // LANES)
            head, lane = bind(tirx.min(own, heads - 1)), bind(thread % LANES)
            group, base = Threads(lane, LANES, 0), bind(head * dim)
            memory = shared((3, threads))
            for index, x in enumerate((q, k, v)):
                squares = LocalVar("float32", zero())
                with strided(group, dim) as d:
                    value = bind(x[i, base + d])
                    squares.add(value * value)
                store(memory, squares.value, index, thread)
            barrier()
            first = bind(thread - lane)
            scales = []
            for index in range(3):
                total = tree([memory[index, first + j] for j in range(LANES)], add)
                scales.append(inverse_rms(total, dim, operator.eps))
            with when(own < heads):
                with strided(group, pairs) as pair:
                    low, high = (bind(channel) for channel in operator.channels(pair))
                    cos, sin = bind(rotary[i, pair, 0]), bind(rotary[i, pair, 1])
                    for x, weight, scale, out in zip(
                        (q, k), weights, scales, (q_out, k_out), strict=False
                    ):
                        a = bind(x[i, base + low] * scale * weight[low])
                        b = bind(x[i, base + high] * scale * weight[high])
                        turned = a * cos - b * sin, b * cos + a * sin
                        for channel, value in zip((low, high), turned, strict=True):
                            if out is q_out:
                                store(out, value, i, base + channel)
                            else:
                                store(out, value.astype(operator.kv_dtype), i, head, channel)
                with strided(group, dim) as d:
                    value = v[i, base + d] * scales[2]
                    store(v_out, value.astype(operator.kv_dtype), i, head, d)
    return build.result


class _PatchBlock(PrefillBlock):
    """A block of queries whose keys are all patches but those of padding."""

    def __init__(
        self,
        operator: PatchAttention,
        shape: ChunkShape,
        args: PrefillOperands,
        thread: Expr,
        positions: Buffer,
    ) -> None:
        super().__init__(operator, shape, args, thread)
        self._positions, self._patches = positions, operator.pooling**2

    def _mask(self, index: int, base: Expr, end: Expr) -> None:
        """Lower the scores of padding, and of what is beyond the last key."""
        scores = []
        for lane, dot in enumerate(SCORE_VEC4.lanes(self.dots[SCORE_VEC4.at(index)])):
            t = materialize(base + self.vec4 + lane * self.shape.vec4s)
            block = tirx.truncdiv(tirx.min(t, end - 1), self._patches)
            seen = (t < end) & (self._positions[block, 0] >= 0)
            scores.append(tirx.Select(seen, dot, f32(LOWEST)))
        store(self.dots, SCORE_VEC4.join(scores), SCORE_VEC4.at(index))


def make_patch_attention(operator: PatchAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: heads x patches / rows of a block. Shared: as of `make_prefill_attention`.

    Reference: `PatchAttention.definition`.
    """
    if (tiles_of_head := head_shape(operator, spec)) is not None:
        return make_tiled_attention(operator, tiles_of_head)
    shape = chunk_shape(operator, spec)
    with function(scheduled=True) as build:
        operands = patch_operands(build, operator)
        rows = operands.rows
        tiles = tirx.floordiv(rows + (shape.rows - 1), shape.rows)
        with launch(shape.threads, operator.heads, tiles) as (head, tile, thread):
            end = bind(i32(rows))
            first = bind(tile * shape.rows)
            args = PrefillOperands(
                operands.q,
                operands.key,
                operands.value,
                head,
                head,
                first,
                end - 1,
                i32(0),
            )
            block = _PatchBlock(operator, shape, args, thread, operands.positions)
            block.load(0, i32(0), end - 1)
            with T.serial(0, tirx.floordiv(end + (shape.keys - 1), shape.keys)) as step:
                base = materialize(step * shape.keys)
                block.score(base, end)
                block.weigh(base, end)
                block.accumulate(base, end - 1)
            block.finish(operands.out)
    return build.result

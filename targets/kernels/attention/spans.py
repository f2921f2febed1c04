"""Attention within the texts of a call: angles, norms and rotation, and flash attention by spans.

Definitions: gemma4_compile/operators/packed_texts.py. The attention is the prefill's (prefill.py)
with another mask: a row sees a run of rows that its span and the radius say.
"""

from __future__ import annotations

from functools import partial

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import as_f32, cos_sin, f32
from gemma4_compile.operators.packed_texts import (
    FIRST,
    QkvNormRope,
    SpanAttention,
    SpanRotary,
)
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.attention.prefill import PrefillBlock, PrefillOperands
from gemma4_compile.targets.kernels.attention.prefill_shape import (
    SCORE_VEC4,
    ChunkShape,
    chunk_shape,
)
from gemma4_compile.targets.kernels.attention.qk_norm_rope_cache import HeadOfRow, write_head
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    inverse_rms,
    launch,
    row_threads,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_span_rotary(operator: SpanRotary, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: pairs / THREADS x rows. Reference: `SpanRotary.definition`."""
    n, pairs = symbolic_rows(None), operator.pairs
    with function(scheduled=True) as build:
        spans = build.arg("spans", (n, 2), "int32")
        rotary = build.arg("rotary", (n, pairs, 2), "float32")
        with launch(THREADS, -(-pairs // THREADS), n) as (part, i, thread):
            pair = bind(part * THREADS + thread)
            with when(pair < pairs):
                place = as_f32(i32(i) - spans[i, FIRST])
                frequency = materialize(operator.frequency(pair), "float32")
                angle = materialize(place * frequency, "float32")
                for index, value in enumerate(cos_sin(angle)):
                    store(rotary, value, i, pair, index)
    return build.result


def make_qkv_norm_rope(operator: QkvNormRope, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: (heads + 2 kv_heads) x rows. Shared: one float32 a thread.

    Reference: `QkvNormRope.definition`.
    """
    n, dim, heads, kv_heads = (
        symbolic_rows(None),
        operator.head_dim,
        operator.heads,
        operator.kv_heads,
    )
    dtype = operator.kv_dtype
    threads = row_threads(dim // 2, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        qkv = build.arg("qkv", (n, operator.columns.width), "float32")
        q_norm, k_norm = (build.arg(f"{name}_norm", (dim,), "float32") for name in "qk")
        rotary = build.arg("rotary", (n, operator.rotary_total, 2), "float32")
        q = build.arg("q", (n, heads * dim), "float32")
        k, v = (build.arg(name, (n, kv_heads, dim), dtype) for name in "kv")
        with launch(threads, heads + 2 * kv_heads, n) as (number, i, thread):
            block = Block(thread, threads, spec.simd_width)
            column = bind(number * dim)
            squares = LocalVar("float32", zero())
            with strided(block, dim) as d:
                squares.add(qkv[i, column + d] * qkv[i, column + d])
            reduce = BlockReduction(block)
            inverse = inverse_rms(reduce(squares.value), dim, operator.eps)
            head = HeadOfRow(qkv, rotary, i, column, inverse, i)
            write = partial(write_head, operator.head, block, head)
            with when(number < heads):
                write(q_norm, True, lambda d, y: store(q, y, i, column + d))
            with when((number >= heads) & (number < heads + kv_heads)):
                write(k_norm, True, lambda d, y: store(k, y.astype(dtype), i, number - heads, d))
            with when(number >= heads + kv_heads):
                g = bind(number - heads - kv_heads)
                write(None, False, lambda d, y: store(v, y.astype(dtype), i, g, d))
    return build.result


class _SpanBlock(PrefillBlock):
    """A block of queries, of which each sees a run of keys of its own."""

    def __init__(
        self,
        operator: SpanAttention,
        shape: ChunkShape,
        args: PrefillOperands,
        thread: Expr,
        spans: Buffer,
    ) -> None:
        super().__init__(operator, shape, args, thread)
        self._seen = []
        for index in range(shape.scored_rows):
            row = materialize(tirx.min(self.token(self._scored(index)), self.last_token))
            self._seen.append([LocalVar("int32", one) for one in operator.seen(spans, row)])

    def _mask(self, index: int, base: Expr, end: Expr) -> None:
        """Lower the scores of keys that the row does not see."""
        first, last = (bound.value for bound in self._seen[index])
        scores = []
        for lane, dot in enumerate(SCORE_VEC4.lanes(self.dots[SCORE_VEC4.at(index)])):
            t = materialize(base + self.vec4 + lane * self.shape.vec4s)
            scores.append(tirx.Select((t >= first) & (t < last), dot, f32(LOWEST)))
        store(self.dots, SCORE_VEC4.join(scores), SCORE_VEC4.at(index))


def make_span_attention(operator: SpanAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: heads / heads of a block x rows / rows of a block. Shared: as `make_prefill_attention`.

    A block goes through the keys from the first that its first row sees to the last that its last
    row does: neither falls from a row to the next. Reference: `SpanAttention.definition`.
    """
    n, dim, heads = symbolic_rows(None), operator.head_dim, operator.heads
    shape = chunk_shape(operator, spec)
    with function(scheduled=True) as build:
        spans = build.arg("spans", (n, 2), "int32")
        q = build.arg("q", (n, heads * dim), "float32")
        key, value = (
            build.arg(name, (n, operator.kv_heads, dim), operator.cache_dtype)
            for name in ("key", "value")
        )
        out = build.arg("out", (n, heads * dim), operator.out_dtype)
        tiles = tirx.floordiv(n + (shape.positions - 1), shape.positions)
        with launch(shape.threads, heads // shape.heads, tiles) as (part, tile, thread):
            first_head, first = bind(part * shape.heads), bind(tile * shape.positions)
            g = bind(tirx.floordiv(first_head, heads // operator.kv_heads))
            last = bind(i32(n) - 1)
            args = PrefillOperands(q, key, value, first_head, g, first, last, i32(0))
            begin, _ = operator.seen(spans, first)
            _, end = operator.seen(spans, tirx.min(first + (shape.positions - 1), last))
            begin, end = materialize(begin), materialize(end)
            block = _SpanBlock(operator, shape, args, thread, spans)
            block.load(0, begin, end - 1)
            steps = tirx.floordiv(end - begin + (shape.keys - 1), shape.keys)
            with T.serial(0, steps) as step:
                base = materialize(begin + step * shape.keys)
                block.score(base, end)
                block.weigh(base, end)
                block.accumulate(base, end - 1)
            block.finish(out)
    return build.result

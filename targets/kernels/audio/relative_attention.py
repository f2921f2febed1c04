"""Attention of a conformer layer: a block a row and head, one distance after the other.

Definition: `RelativeAttention` in gemma4_compile/operators/conformer.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.conformer import RESULT, RelativeAttention, clipped
from gemma4_compile.operators.math import f32, softcap
from gemma4_compile.operators.tir import LocalVar, bind, function, materialize, store, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    launch,
    row_threads,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

SIMDGROUP_CHANNELS = 512  # of a head that one simdgroup has, at most: 16 of a thread


def _threads(dim: int, spec: TargetSpec) -> int:
    """Threads of a block: with simdgroups one of them, which sums without a barrier."""
    if spec.simdgroup_matrices and dim <= SIMDGROUP_CHANNELS:
        return spec.simd_width
    return row_threads(dim, spec.max_threads_per_block)


def make_relative_attention(operator: RelativeAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """A thread has every `threads`-th channel of the head; the softmax is an online one.

    Grid: heads x rows. Shared: one float32 a thread, of several simdgroups. Reference:
    `RelativeAttention.definition`.
    """
    rows, dim, width = symbolic_rows(None), operator.head_dim, operator.width
    threads = _threads(dim, spec)
    with function(scheduled=True) as build:
        args = {name: build.arg(name, *tensor) for name, tensor in operator.arguments(rows)}
        y = build.arg("y", (rows, width), "float32")
        with launch(threads, operator.heads, rows) as (h, i, thread):
            reduce = BlockReduction(Block(thread, threads, spec.simd_width))
            raw = [bind(thread + begin) for begin in range(0, dim, threads)]
            own = [bind(tirx.min(d, dim - 1)) for d in raw] if dim % threads else raw
            inside: list[Expr | None] = [d < dim if dim % threads else None for d in raw]
            q = [materialize(operator.query(args, i, h, d), "float32") for d in own]
            means = [LocalVar("float32", zero()) for _ in own]
            top, total = LocalVar("float32", f32(LOWEST)), LocalVar("float32", zero())
            with T.serial(0, tirx.min(i + 1, operator.context)) as distance:
                row = bind(i - distance)
                product = zero()
                for d, value, is_own in zip(own, q, inside, strict=True):
                    term = value * operator.key(args, row, h, d, distance)
                    term = term if is_own is None else tirx.Select(is_own, term, zero())
                    product = product + term
                score = materialize(softcap(reduce(product), operator.cap), "float32")
                highest = materialize(tirx.max(top.value, score), "float32")
                kept = materialize(tirx.exp(top.value - highest), "float32")
                weight = materialize(tirx.exp(score - highest), "float32")
                top.set(highest)
                total.set(total.value * kept + weight)
                for d, mean in zip(own, means, strict=True):
                    value = args["v"][row, h * dim + d]
                    value = clipped(value, args.get("v_bounds"), RESULT)
                    mean.set(mean.value * kept + weight * value)
            for d, mean, is_own in zip(own, means, inside, strict=True):
                with _if(is_own):
                    store(y, operator.result(args, mean.value / total.value), i, h * dim + d)
    return build.result


def _if(condition: Expr | None) -> AbstractContextManager[None]:
    return nullcontext() if condition is None else when(condition)

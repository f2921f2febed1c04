"""Convolution, LayerNorm and ReLU of the audio tower's subsampling: a block a place.

Definition: `SubsampleConv` in gemma4_compile/operators/audio_features.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.audio_features import KERNEL, SubsampleConv, halved
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import f32
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


def make_subsample_conv(operator: SubsampleConv, spec: TargetSpec) -> tirx.PrimFunc:
    """A thread has every `threads`-th channel; a row of its weights is read in order.

    Grid: frequencies x times of the result. Shared: one float32 a thread. Reference:
    `SubsampleConv.definition`.
    """
    rows, channels, inputs = symbolic_rows(None), operator.out_channels, operator.in_channels
    threads = row_threads(channels, spec.max_threads_per_block)
    times, frequencies = halved(rows), int(halved(operator.frequencies))
    with function(scheduled=True) as build:
        x, weight, norm = (build.arg(name, *one) for name, one in operator.arguments(rows))
        y = build.arg("y", (times, operator.outputs), operator.out_dtype)
        with launch(threads, frequencies, times) as (f, t, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            own = [bind(thread + begin) for begin in range(0, channels, threads)]
            sums = [LocalVar("float32", zero()) for _ in own]
            with T.serial(0, inputs) as c:
                for u in range(KERNEL):
                    for v in range(KERNEL):
                        place = operator.place(x, t * 2 + (u - 1), f * 2 + (v - 1), c)
                        value = materialize(place, "float32")
                        for o, total in zip(own, sums, strict=True):
                            row = (tirx.min(o, channels - 1) * inputs + c) * KERNEL + u
                            total.add(value * weight[row, v])

            def of_block(values: list[Expr]) -> Expr:
                """Sum over the channels, without the threads that have none."""
                total = zero()
                for o, value in zip(own, values, strict=True):
                    total = total + tirx.Select(o < channels, value, zero())
                return materialize(reduce(total) / f32(channels), "float32")

            mean = of_block([total.value for total in sums])
            centred = [bind(total.value - mean) for total in sums]
            variance = of_block([value * value for value in centred])
            inverse = materialize(tirx.rsqrt(variance + f32(operator.eps)), "float32")
            for o, value in zip(own, centred, strict=True):
                with when(o < channels):
                    result = tirx.max(value * inverse * norm[o], zero())
                    store(y, result.astype(operator.out_dtype), t, f * channels + o)
    return build.result

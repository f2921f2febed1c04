"""Softmax over the vocabulary in two launches. Definitions: operators/sampling.py."""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.sampling import (
    MASKED,
    SoftmaxPartials,
    SoftmaxProbs,
    weight_of,
)
from gemma4_compile.operators.tir import LocalVar, bind, function, store, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    launch,
    row_threads,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec


def make_softmax_partials(operator: SoftmaxPartials, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: blocks. Shared: one float32 a thread. Reference: `SoftmaxPartials.definition`."""
    vocab, run = operator.vocab, operator.run
    threads = row_threads(run, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, 1, vocab), "float32")
        temperature = build.arg("temperature", (1,), "float32")
        partials = build.arg("partials", (operator.blocks, 2), "float32")
        with launch(threads, operator.blocks) as (index, _, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            highest, total = LocalVar("float32", f32(MASKED)), LocalVar("float32", zero())
            with strided(block, run) as item:
                v = bind(index * run + item)
                with when(v < vocab):
                    highest.set(tirx.max(highest.value, logits[0, 0, v]))
            top = reduce(highest.value, tirx.max)
            with strided(block, run) as item:
                v = bind(index * run + item)
                with when(v < vocab):
                    total.add(weight_of(logits[0, 0, v], top, temperature[0]))
            whole = reduce(total.value)
            with when(thread == 0):
                store(partials, top, index, 0)
                store(partials, whole, index, 1)
    return build.result


def make_softmax_probs(operator: SoftmaxProbs, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block merges the partials, then writes its run. Grid: blocks.

    Reference: `SoftmaxProbs.definition`.
    """
    vocab, blocks = operator.vocab, operator.blocks
    run = -(-vocab // blocks)
    threads = row_threads(max(run, blocks), spec.max_threads_per_block)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, 1, vocab), "float32")
        temperature = build.arg("temperature", (1,), "float32")
        partials = build.arg("partials", (blocks, 2), "float32")
        probs = build.arg("probs", (1, 1, vocab), "float32")
        with launch(threads, blocks) as (index, _, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            highest, total = LocalVar("float32", f32(MASKED)), LocalVar("float32", zero())
            with strided(block, blocks) as b:
                highest.set(tirx.max(highest.value, partials[b, 0]))
            top = reduce(highest.value, tirx.max)
            with strided(block, blocks) as b:
                total.add(partials[b, 1] * weight_of(partials[b, 0], top, temperature[0]))
            whole: Expr = reduce(total.value)
            with strided(block, run) as item:
                v = bind(index * run + item)
                with when(v < vocab):
                    store(probs, weight_of(logits[0, 0, v], top, temperature[0]) / whole, 0, 0, v)
    return build.result

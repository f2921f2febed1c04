"""Softmax over the vocabulary in two launches. Definitions: operators/sampling.py."""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.draws import BINS, DrawPartials, i64
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.sampling import (
    MASKED,
    SoftmaxPartials,
    SoftmaxProbs,
    weight_of,
)
from gemma4_compile.operators.tir import LocalVar, bind, function, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    launch,
    row_threads,
    several,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec


def make_softmax_partials(operator: SoftmaxPartials, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: blocks x rows. Shared: a float32 a thread. Reference: `SoftmaxPartials.definition`."""
    vocab, run, n = operator.vocab, operator.run, operator.rows.extent()
    threads = row_threads(run, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, n, vocab), "float32")
        temperature = build.arg("temperature", (1,), "float32")
        partials = build.arg("partials", (n, operator.blocks, 2), "float32")
        masses = None
        if isinstance(operator, DrawPartials):
            masses = build.arg("masses", (n, BINS), "int64")
        with launch(threads, operator.blocks, several(operator.rows, n)) as (index, i, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            highest, total = LocalVar("float32", f32(MASKED)), LocalVar("float32", zero())
            if masses is not None:
                share = -(-BINS // operator.blocks)
                with strided(block, share) as item, when(index * share + item < BINS):
                    store(masses, i64(0), i, index * share + item)
            with strided(block, run) as item:
                v = bind(index * run + item)
                with when(v < vocab):
                    highest.set(tirx.max(highest.value, logits[0, i, v]))
            top = reduce(highest.value, tirx.max)
            with strided(block, run) as item:
                v = bind(index * run + item)
                with when(v < vocab):
                    total.add(weight_of(logits[0, i, v], top, temperature[0]))
            whole = reduce(total.value)
            with when(thread == 0):
                store(partials, top, i, index, 0)
                store(partials, whole, i, index, 1)
    return build.result


def merged(
    block: Block, blocks: int, partials: Buffer, i: Expr, temperature: Buffer
) -> tuple[Expr, Expr]:
    """The maximum and the sum of weights of row i, of the partials of so many blocks."""
    reduce = BlockReduction(block)
    highest, total = LocalVar("float32", f32(MASKED)), LocalVar("float32", zero())
    with strided(block, blocks) as b:
        highest.set(tirx.max(highest.value, partials[i, b, 0]))
    top = reduce(highest.value, tirx.max)
    with strided(block, blocks) as b:
        total.add(partials[i, b, 1] * weight_of(partials[i, b, 0], top, temperature[0]))
    return top, reduce(total.value)


def make_softmax_probs(operator: SoftmaxProbs, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block merges a row's partials, then writes its run. Grid: blocks x rows.

    Reference: `SoftmaxProbs.definition`.
    """
    vocab, blocks, n = operator.vocab, operator.blocks, operator.rows.extent()
    run = -(-vocab // blocks)
    threads = row_threads(max(run, blocks), spec.max_threads_per_block)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, n, vocab), "float32")
        temperature = build.arg("temperature", (1,), "float32")
        partials = build.arg("partials", (n, blocks, 2), "float32")
        probs = build.arg("probs", (1, n, vocab), "float32")
        with launch(threads, blocks, several(operator.rows, n)) as (index, i, thread):
            block = Block(thread, threads, spec.simd_width)
            top, whole = merged(block, blocks, partials, i, temperature)
            with strided(block, run) as item:
                v = bind(index * run + item)
                with when(v < vocab):
                    store(probs, weight_of(logits[0, i, v], top, temperature[0]) / whole, 0, i, v)
    return build.result

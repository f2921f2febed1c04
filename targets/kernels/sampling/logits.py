"""In-place changes of logits: bias, penalties, grammar mask.

Definitions: gemma4_compile/operators/sampling.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.sampling import (
    MASKED,
    Bitmask,
    LogitBias,
    Penalty,
    forbidden,
    penalised,
)
from gemma4_compile.operators.tir import bind, function, i32, store, when
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_logit_bias(operator: LogitBias, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: biases / THREADS. Reference: `LogitBias.definition`."""
    n = symbolic_rows(None)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, operator.vocab), "float32")
        seq = build.arg("seq", (n,), "int32")
        token = build.arg("token", (n,), "int32")
        bias = build.arg("bias", (n,), "float32")
        with launch(THREADS, tirx.floordiv(n + (THREADS - 1), THREADS)) as (block, _, thread):
            i = bind(block * THREADS + thread)
            with when(i < i32(n)):
                row, column = bind(seq[i]), bind(token[i])
                store(logits, logits[row, column] + bias[i], row, column)
    return build.result


def make_penalty(operator: Penalty, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: tokens / THREADS. Reference: `Penalty.definition`."""
    n, m = symbolic_rows(None), symbolic_rows(None, "m")
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, operator.vocab), "float32")
        seq_ids = build.arg("seq_ids", (m,), "int32")
        pos2seq = build.arg("pos2seq", (n,), "int32")
        token = build.arg("token", (n,), "int32")
        count = build.arg("count", (n,), "int32")
        penalties = build.arg("penalties", (m, 3), "float32")
        with launch(THREADS, tirx.floordiv(n + (THREADS - 1), THREADS)) as (block, _, thread):
            i = bind(block * THREADS + thread)
            with when(i < i32(n)):
                s = bind(pos2seq[i])
                row, column = bind(seq_ids[s]), bind(token[i])
                three = (penalties[s, 0], penalties[s, 1], penalties[s, 2])
                store(logits, penalised(logits[row, column], count[i], *three), row, column)
    return build.result


def make_bitmask(operator: Bitmask, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: vocabulary / THREADS. Reference: `Bitmask.definition`."""
    vocab = operator.vocab
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, vocab), "float32")
        seq_ids = build.arg("seq_ids", (1,), "int32")
        mask = build.arg("mask", (1, -(-vocab // 32)), "int32")
        with launch(THREADS, -(-vocab // THREADS)) as (block, _, thread):
            v = bind(block * THREADS + thread)
            row = bind(seq_ids[0])
            with when(v < vocab), when(forbidden(mask[row, tirx.floordiv(v, 32)], v)):
                store(logits, f32(MASKED), row, v)
    return build.result

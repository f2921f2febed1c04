"""The splits of an attention put together. Definition: `CombineSplits.definition`."""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.attention_splits import CombineSplits, declare_splits
from gemma4_compile.operators.tir import bind, function, store, when
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.kernels.prologues.splits import combine_shape, combine_slice
from gemma4_compile.targets.spec import TargetSpec


def make_combine_splits(operator: CombineSplits, spec: TargetSpec) -> tirx.PrimFunc:
    """Weigh each split by its maximum.

    Grid: heads x slices of channels. Shared: a float32 a split, and a vector a thread. Reference:
    `CombineSplits.definition`.
    """
    dim, heads, splits = operator.head_dim, operator.heads, operator.splits
    shape = combine_shape(dim, splits, spec)
    vectors = shape.vectors
    with function(scheduled=True) as build:
        o_partial, split_lse = declare_splits(build, operator, operator.out_dtype)
        out = build.arg("out", (1, heads * dim), operator.out_dtype)
        with launch(shape.threads, heads, shape.slices) as (h, slice_, thread):
            combined = combine_slice(shape, o_partial, split_lse, h, slice_, thread)
            column = bind(slice_ * shape.width + thread)
            with when((thread < shape.width) & (column < shape.columns)):
                result = vectors.cast(combined, operator.out_dtype)
                store(out, result, 0, vectors.at(h * shape.columns + column))
    return build.result

"""The splits of an attention put together. Definition: `CombineSplits.definition`."""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.activations import INTERLEAVED, PackedOutput, SteppedOutput
from gemma4_compile.operators.attention_splits import CombineSplits, declare_splits
from gemma4_compile.operators.rows import One
from gemma4_compile.operators.static_rounding import READER_STEPS, words_spec
from gemma4_compile.operators.tir import OneRow, bind, function, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import Block, launch
from gemma4_compile.targets.kernels.prologues.packed_rows import (
    if_there_is,
    packed_results,
    store_run,
    written_rows,
)
from gemma4_compile.targets.kernels.prologues.splits import combine_shape, combine_slice
from gemma4_compile.targets.kernels.prologues.vectors import VEC4S, round_vec4s, step_vec4s
from gemma4_compile.targets.spec import TargetSpec


def make_combine_splits(operator: CombineSplits, spec: TargetSpec) -> tirx.PrimFunc:
    """Weigh each split by its maximum; round the result where that is asked for.

    Grid: heads x slices of channels; of a few rows heads * slices x rows, of tiles all. Shared: a
    float32 a split, and a vector a thread; a float32 a vec4 of a slice that is rounded. Reference:
    `CombineSplits.definition`.
    """
    dim, heads, n = operator.head_dim, operator.heads, operator.rows.extent()
    shape = combine_shape(dim, operator.splits, spec)
    is_one, output, vectors, width = (
        isinstance(operator.rows, One),
        operator.output,
        shape.vectors,
        shape.width,
    )
    with function(scheduled=True) as build:
        splits = declare_splits(build, operator, operator.out_dtype, operator.rows.lead(n))
        steps = None
        if isinstance(output, SteppedOutput):
            steps = build.arg(READER_STEPS, (output.reader_steps,), "float32")
            results = [build.arg("words", *words_spec(heads * dim, n))]
        elif isinstance(output, PackedOutput):
            results = packed_results(build, heads * dim, n, tiled=output.tiled)
        else:
            results = [build.arg("out", (n, heads * dim), operator.out_dtype)]
        rows = written_rows(n, results[0])
        grid = (heads, shape.slices) if is_one else (heads * shape.slices, rows)
        with launch(shape.threads, *grid) as (x, y, thread):
            h = x if is_one else bind(tirx.floordiv(x, shape.slices))
            slice_ = y if is_one else bind(tirx.floormod(x, shape.slices))
            i = tirx.const(0, "int32") if is_one else y
            own: tuple[Buffer, Buffer] = splits
            if not is_one:
                own = OneRow(splits[0], i), OneRow(splits[1], i)
            if isinstance(output, SteppedOutput):
                assert steps is not None, "an argument of such results"
                assert vectors.size == WORD, "a vector is a word"
                words, step = results[0], bind(steps[0])
                block, first = Block(thread, shape.threads, spec.simd_width), bind(slice_ * width)
                vec4 = bind(combine_slice(shape, *own, h, slice_, thread))

                def put(item: Expr, word: Expr) -> None:
                    with when(first + item < shape.columns):
                        store(words, word, i, h * shape.columns + first + item)

                step_vec4s([vec4], block, width, output.result == INTERLEAVED, step, put)
            elif isinstance(output, PackedOutput):
                block, vec4s = Block(thread, shape.threads, spec.simd_width), dim // WORD
                assert width % VEC4S == vec4s % VEC4S == 0, "a slice holds whole groups"
                first, end = bind(h * vec4s + slice_ * width), bind((h + 1) * vec4s)

                put_word, put_scale = store_run(results, i, first, end)
                with if_there_is(i, n, results[0], block, width, put_word):
                    vec4 = bind(combine_slice(shape, *own, h, slice_, thread))
                    round_vec4s([vec4], block, width, output.interleaved, put_word, put_scale)
            else:
                combined = combine_slice(shape, *own, h, slice_, thread)
                column = bind(slice_ * width + thread)
                with when((thread < width) & (column < shape.columns)):
                    result = vectors.cast(combined, operator.out_dtype)
                    store(results[0], result, i, vectors.at(h * shape.columns + column))
    return build.result

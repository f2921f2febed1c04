"""Packed rows of a chunk as float16 over a power of two of each.

Definition: `HalveRows` in gemma4_compile/operators/halved_rows.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD, quantized_specs
from gemma4_compile.operators.halved_rows import HALVES, POWERS, HalveRows, halved_specs
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.row_powers import as_float, inverse_of, power_bits
from gemma4_compile.operators.tir import LocalVar, bind, function, store, when
from gemma4_compile.targets.kernels.common.blocks import Block, BlockReduction, launch, row_threads
from gemma4_compile.targets.kernels.tiles.subgroup_chunk_products import halves_of_word
from gemma4_compile.targets.spec import TargetSpec


def make_halve_rows(operator: HalveRows, spec: TargetSpec) -> tirx.PrimFunc:
    """A row a block.

    Grid: rows. Shared: what a reduction of float32 takes. Definition: `HalveRows`.
    """
    rows, width = operator.rows.extent(), operator.width
    groups, count = width // GROUP, width // WORD
    threads = row_threads(count, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        names = zip(("words", "scales"), quantized_specs(width, rows), strict=True)
        words, scales = [build.arg(name, *one) for name, one in names]
        results = zip((HALVES, POWERS), halved_specs(width, rows), strict=True)
        halves, powers = [build.arg(name, *one) for name, one in results]
        with launch(threads, rows) as (i, _, thread):
            reduce = BlockReduction(Block(thread, threads, spec.simd_width))
            largest = LocalVar("float32", f32(0.0))
            with T.serial(0, -(-groups // threads)) as iteration:
                group = bind(tirx.min(thread + iteration * threads, groups - 1))
                largest.set(tirx.max(largest.value, tirx.abs(scales[i, group])))
            bits = bind(power_bits(reduce(largest.value, tirx.max)))
            inverse = bind(inverse_of(bits))
            with when(thread == 0):
                store(powers, as_float(bits), i, 0)
            with T.serial(0, -(-count // threads)) as iteration:
                item = bind(thread + iteration * threads)
                with when(item < count):
                    scale = bind((scales[i, item // (GROUP // WORD)] * inverse).astype("float16"))
                    four = halves_of_word(bind(words[i, item]), scale)
                    store(halves, four, i, T.ramp(item * WORD, 1, WORD))
    return build.result

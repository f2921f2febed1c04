"""Steps and levels of groups of 32 weights with 16 levels: the search, compiled by TVM for the CPU.

A group has one signed scale; ``value = (q - 7) * scale``, 0 <= q <= 15. Turned so that its largest
magnitude is positive, it is cut into steps s > 0 with levels -7..8 (code 15 is the largest weight)
or -8..7 (code 15 is its opposite: the scale is negative).

1. For each ratio of RATIOS and both ranges: levels with ``s = largest / ratio``, in 15 bits. Best
   is the range and the levels whose least-squares step leaves the smallest square error.
2. Levels that leave room for it are multiplied by the whole number that makes their step one that
   the scale's dtype holds best. Then three times: the least-squares step of the levels, rounded to
   the scale's dtype, and the nearest levels of that *rounded* step. The plain rule too: s =
   largest / 7, levels -7..7. The smallest square error counts, the first of equal ones.
3. If a step of the scale's dtype gives every weight as the checkpoint stored it (in bfloat16,
   float16 or float32: the narrowest that holds the group), the one nearest to that of 2 is taken,
   and the group is *exact*. Weights that were trained on 16 levels are restored by it.
4. A group that is not exact and whose scale is below COARSE of the smallest ones goes through all
   of it once more; after step 2, TRIED multiples of the smallest scale are tried with both ranges.

The same on every machine: sums of step 1 are of small integers, those of step 2 of products that
float64 holds exactly, each in one order. No result depends on whether a processor fuses
multiplications into additions, and nothing is reassociated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.script import tirx as T

from gemma4_compile.operators.packing import UInt32Array
from gemma4_compile.quantization.group_search_stages import (
    COARSE,
    GROUP,
    LANES,
    UNIT,
    best_ratio,
    fit_steps,
    keep_stored_values,
    try_coarse_steps,
    turn_positive,
    write_codes,
)
from gemma4_compile.quantization.host_kernels import compiled_once

RATIOS = np.concatenate([np.arange(1, 5), np.arange(4.5, 10.5, 5 / 64)]).astype(np.float32)
"""Of the largest weight to the step: whole ones for trained levels, close ones to search among."""

SMALLEST = {"float16": 2.0**-24, "float32": 2.0**-149}
"""Scales: also the distance of neighbours among subnormal ones."""

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FoundGroups:
    """What the search finds for each of n groups.

    Attributes
    ----------
    words : (n, 4), uint32: codes, the first weight in the lowest bits
    scales : (n,), float32: values of the scale's dtype, 0 for a group of zeros alone
    exact : (n,), bool
    """

    words: UInt32Array
    scales: Float32Array
    exact: npt.NDArray[np.bool_]


def search_groups(weights: Float32Array, scale_dtype: str) -> FoundGroups:
    """Search the steps and levels of groups.

    Parameters
    ----------
    weights : (n, 32), float32, finite; at most 8 times the largest number of `scale_dtype`
    scale_dtype : float16 or float32

    Returns
    -------
    FoundGroups
        A group of zeros has scale 0 and codes 7.
    """
    found = _search(weights, scale_dtype, is_coarse=False)
    sizes = np.abs(found.scales)
    coarse = (sizes > 0) & (sizes < np.float32(COARSE * SMALLEST[scale_dtype])) & ~found.exact
    if coarse.any():
        again = _search(weights[coarse], scale_dtype, is_coarse=True)
        found.words[coarse], found.scales[coarse] = again.words, again.scales
        found.exact[coarse] = again.exact
    return found


def _search(weights: Float32Array, scale_dtype: str, *, is_coarse: bool) -> FoundGroups:
    count = len(weights)
    blocks = -(-count // LANES)
    if count % LANES:
        weights = np.concatenate([weights, np.zeros((-count % LANES, GROUP), np.float32)])
    given = tvm.runtime.tensor(np.ascontiguousarray(weights).reshape(blocks, LANES, GROUP))
    words = tvm.runtime.empty((blocks, LANES, GROUP // 8), "uint32")
    scales = tvm.runtime.empty((blocks, LANES), "float32")
    exact = tvm.runtime.empty((blocks, LANES), "uint8")
    _kernel(scale_dtype, is_coarse)(
        given, tvm.runtime.tensor(RATIOS / np.float32(UNIT)), words, scales, exact
    )
    return FoundGroups(
        words.numpy().reshape(-1, GROUP // 8)[:count],
        scales.numpy().reshape(-1)[:count],
        exact.numpy().reshape(-1)[:count].astype(np.bool_),
    )


@compiled_once
def _kernel(scale_dtype: str, is_coarse: bool) -> Any:
    """The search as a function of TVM; docs/numerics.md tells of its speed."""
    smallest = SMALLEST[scale_dtype]
    normal = 2.0**-14 if scale_dtype == "float16" else 2.0**-126

    @T.prim_func(s_tir=True)
    def search(
        weights_handle: T.handle,
        ratios_handle: T.handle,
        words_handle: T.handle,
        scales_handle: T.handle,
        exact_handle: T.handle,
    ) -> None:
        blocks, count = T.int64(), T.int64()
        weights = T.match_buffer(weights_handle, (blocks, LANES, GROUP), "float32")
        ratios = T.match_buffer(ratios_handle, (count,), "float32")
        words = T.match_buffer(words_handle, (blocks, LANES, GROUP // 8), "uint32")
        scales = T.match_buffer(scales_handle, (blocks, LANES), "float32")
        exact = T.match_buffer(exact_handle, (blocks, LANES), "uint8")
        x = T.alloc_buffer((GROUP, LANES), "float32")  # the weights, turned
        whole = T.alloc_buffer((GROUP, LANES), "float32")  # as integers up to UNIT
        level = T.alloc_buffer((GROUP, LANES), "float32")
        best_level = T.alloc_buffer((GROUP, LANES), "float32")
        turn = T.alloc_buffer((LANES,), "float32")  # 1 or -1
        largest = T.alloc_buffer((LANES,), "float32")
        low = T.alloc_buffer((LANES,), "float32")  # lowest level of the range: -7 or -8
        inverse = T.alloc_buffer((LANES,), "float32")  # 1 / step, in integers
        a0 = T.alloc_buffer((LANES,), "float32")
        b0 = T.alloc_buffer((LANES,), "float32")
        a1 = T.alloc_buffer((LANES,), "float32")
        b1 = T.alloc_buffer((LANES,), "float32")
        score = T.alloc_buffer((LANES,), "float32")
        best = T.alloc_buffer((LANES,), "float32")
        step = T.alloc_buffer((LANES,), "float32")
        best_step = T.alloc_buffer((LANES,), "float32")
        dot = T.alloc_buffer((LANES,), "float64")  # sum of weight times level
        squares = T.alloc_buffer((LANES,), "float64")  # sum of the levels' squares
        error = T.alloc_buffer((LANES,), "float64")  # less the weights' squares
        best_error = T.alloc_buffer((LANES,), "float64")
        used = T.alloc_buffer((LANES,), "uint32")
        last = T.alloc_buffer((LANES,), "uint32")
        for b in range(blocks):
            turn_positive(b, weights, x, whole, turn, largest, a0, b0)
            best_ratio(ratios, whole, low, inverse, a0, b0, a1, b1, score, best, count)
            fit_steps(
                x,
                whole,
                level,
                best_level,
                largest,
                low,
                inverse,
                a0,
                b0,
                a1,
                b1,
                step,
                best_step,
                dot,
                squares,
                error,
                best_error,
                scale_dtype,
                smallest,
                normal,
            )
            if is_coarse:
                try_coarse_steps(
                    x,
                    level,
                    best_level,
                    largest,
                    low,
                    a0,
                    b0,
                    a1,
                    step,
                    best_step,
                    dot,
                    squares,
                    error,
                    best_error,
                    smallest,
                )
            keep_stored_values(
                x,
                best_level,
                a0,
                b0,
                a1,
                b1,
                score,
                step,
                best_step,
                dot,
                squares,
                used,
                last,
                scale_dtype,
                smallest,
            )
            write_codes(
                b, words, scales, exact, best_level, turn, largest, low, a0, score, step, used
            )

    return search

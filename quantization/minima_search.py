"""Scales, minima and codes of groups of 32 weights (`operators/minima.py`), compiled by TVM.

1. Of each group, in integers up to UNIT: for each of RATIOS the codes of steps that cut the span
   from the lowest weight (or 0) to the highest (or 0) into so many, and the least-squares scale and
   minimum of these codes; without a minimum where that would be below 0. Best is what leaves the
   smallest square error.
2. Of each block: d and e are its largest scale and minimum over 63, rounded to bfloat16; s and m
   are the nearest integers.
3. Of each group: with s, s - 1 and s + 1 the codes on the stored scale and minimum, the
   least-squares minimum of these as m, and the codes again. The first of the smallest error stays.

The same on every machine, as `group_search` is: sums of 1 are of integers that float32 holds and
their quotients of integers that float64 holds; products that are added in 3 are exact, and sums go
from the first weight to the last.
"""

# TVM reads the stages, whose arguments are its buffers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tvm
from tvm import tirx
from tvm.script import tirx as T

from gemma4_compile.operators.minima import GROUP, GROUPS, TOP_SIZE
from gemma4_compile.operators.packing import UInt32Array
from gemma4_compile.quantization.host_kernels import compiled_once

LANES = 16  # groups side by side
UNIT = 16384.0  # the largest weight, in the integers of step 1
LEAST = 2.0**-100
"""Groups whose weights are all smaller are zeros."""
RATIOS = np.linspace(14, 16, 21).astype(np.float32)
"""Steps of a span."""

Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FoundMinima:
    """What the search finds for n groups, in blocks.

    Attributes
    ----------
    words : (n, 4), uint32, codes, the first weight in the lowest bits
    units : (n / GROUPS, 2), float32: d and e
    sizes : (n / GROUPS, GROUPS, 2), uint8: s and m
    """

    words: UInt32Array
    units: Float32Array
    sizes: UInt8Array


def search_minima(weights: Float32Array) -> FoundMinima:
    """Find scales, minima and codes.

    Parameters
    ----------
    weights : (n, 32), float32, finite, magnitudes below 2^60; GROUPS divides n
    """
    count = len(weights)
    lanes = -(-count // LANES)
    if count % LANES:
        weights = np.concatenate([weights, np.zeros((-count % LANES, GROUP), np.float32)])
    given = tvm.runtime.tensor(np.ascontiguousarray(weights).reshape(lanes, LANES, GROUP))
    fitted = [tvm.runtime.empty((lanes, LANES), "float32") for _ in range(2)]
    _compiled("fit")(given, tvm.runtime.tensor(RATIOS), *fitted)
    scales, minima = (found.numpy() for found in fitted)
    units = np.stack([_units(found.reshape(-1)[:count]) for found in (scales, minima)], axis=1)
    every = np.zeros((2, lanes * LANES), np.float32)
    every[:, :count] = np.repeat(units.T, GROUPS, axis=1)
    words = tvm.runtime.empty((lanes, LANES, GROUP // 8), "uint32")
    sizes = [tvm.runtime.empty((lanes, LANES), "uint8") for _ in range(2)]
    own = [tvm.runtime.tensor(one.reshape(lanes, LANES)) for one in every]
    _compiled("refine")(given, *fitted, *own, words, *sizes)
    pairs = np.stack([size.numpy().reshape(-1)[:count] for size in sizes], axis=1)
    return FoundMinima(
        words.numpy().reshape(-1, GROUP // 8)[:count], units, pairs.reshape(-1, GROUPS, 2)
    )


def _units(sizes: Float32Array) -> Float32Array:
    """Of each block the unit in bfloat16 of which the largest size is TOP_SIZE."""
    exact = sizes.reshape(-1, GROUPS).max(axis=1) / np.float32(TOP_SIZE)
    bits = exact.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + (np.uint32(0x7FFF) + odd)) & np.uint32(0xFFFF0000)).view(np.float32)


@compiled_once
def _compiled(name: str) -> tirx.PrimFunc:
    return {"fit": _fit, "refine": _refine}[name]()


def _fit() -> tirx.PrimFunc:
    """Step 1, read where it is needed: that takes longer than loading all of TVM."""

    @T.prim_func(s_tir=True)
    def fit(
        weights_handle: T.handle,
        ratios_handle: T.handle,
        scales_handle: T.handle,
        minima_handle: T.handle,
    ) -> None:
        blocks, count = T.int64(), T.int64()
        weights = T.match_buffer(weights_handle, (blocks, LANES, GROUP), "float32")
        ratios = T.match_buffer(ratios_handle, (count,), "float32")
        scales = T.match_buffer(scales_handle, (blocks, LANES), "float32")
        minima = T.match_buffer(minima_handle, (blocks, LANES), "float32")
        whole = T.alloc_buffer((GROUP, LANES), "float32")
        largest = T.alloc_buffer((LANES,), "float32")
        low = T.alloc_buffer((LANES,), "float32")
        span = T.alloc_buffer((LANES,), "float32")
        total = T.alloc_buffer((LANES,), "float32")
        codes = T.alloc_buffer((LANES,), "float32")
        squares = T.alloc_buffer((LANES,), "float32")
        products = T.alloc_buffer((LANES,), "float32")
        scale = T.alloc_buffer((LANES,), "float64")
        minimum = T.alloc_buffer((LANES,), "float64")
        gain = T.alloc_buffer((LANES,), "float64")
        best = T.alloc_buffer((LANES,), "float64")
        best_scale = T.alloc_buffer((LANES,), "float64")
        best_minimum = T.alloc_buffer((LANES,), "float64")
        for b in range(blocks):
            for n in range(LANES):
                largest[n] = T.float32(0)
                low[n] = T.float32(0)
                span[n] = T.float32(0)
                total[n] = T.float32(0)
                best[n] = T.float64(-1)
                best_scale[n] = T.float64(0)
                best_minimum[n] = T.float64(0)
            for i in range(GROUP):
                for n in range(LANES):
                    whole[i, n] = weights[b, n, i]
                    largest[n] = T.max(largest[n], T.fabs(whole[i, n]))
            for n in range(LANES):
                largest[n] = T.Select(largest[n] < T.float32(LEAST), T.float32(0), largest[n])
                codes[n] = T.Select(
                    largest[n] == T.float32(0),
                    T.float32(0),
                    T.float32(UNIT) / T.max(largest[n], T.float32(LEAST)),
                )
            for i in range(GROUP):
                for n in range(LANES):
                    whole[i, n] = T.nearbyint(whole[i, n] * codes[n])
                    low[n] = T.min(low[n], whole[i, n])
                    span[n] = T.max(span[n], whole[i, n])
                    total[n] = total[n] + whole[i, n]
            for n in range(LANES):
                span[n] = T.max(span[n] - low[n], T.float32(1))
            for c in range(count):
                for n in range(LANES):
                    codes[n] = T.float32(0)
                    squares[n] = T.float32(0)
                    products[n] = T.float32(0)
                for i in range(GROUP):
                    for n in range(LANES):
                        place: T.let = (whole[i, n] - low[n]) * (ratios[c] / span[n])
                        nearest: T.let = T.min(
                            T.max(T.nearbyint(place), T.float32(0)), T.float32(15)
                        )
                        codes[n] = codes[n] + nearest
                        squares[n] = squares[n] + nearest * nearest
                        products[n] = products[n] + nearest * whole[i, n]
                for n in range(LANES):
                    q: T.let = T.Cast("float64", codes[n])
                    qq: T.let = T.Cast("float64", squares[n])
                    qx: T.let = T.Cast("float64", products[n])
                    x: T.let = T.Cast("float64", total[n])
                    spread: T.let = T.float64(GROUP) * qq - q * q
                    slope: T.let = T.float64(GROUP) * qx - q * x
                    height: T.let = qq * x - q * qx
                    over: T.let = T.max(spread, T.float64(1))
                    alone: T.let = T.max(qq, T.float64(1))
                    rise: T.let = T.max(qx, T.float64(0))
                    fall: T.let = T.min(x, T.float64(0))
                    has_both: T.let = (spread > T.float64(0)) & (height <= T.float64(0))
                    has_codes: T.let = qq > T.float64(0)
                    both: T.let = (slope * qx + height * x) / over
                    one: T.let = T.Select(
                        has_codes, rise * rise / alone, fall * fall / T.float64(32)
                    )
                    gain[n] = T.Select(has_both, both, one)
                    scale[n] = T.Select(
                        has_both,
                        slope / over,
                        T.Select(has_codes, rise / alone, T.float64(0)),
                    )
                    minimum[n] = T.Select(
                        has_both,
                        (T.float64(0) - height) / over,
                        T.Select(has_codes, T.float64(0), (T.float64(0) - fall) / T.float64(32)),
                    )
                for n in range(LANES):
                    best_scale[n] = T.Select(gain[n] > best[n], scale[n], best_scale[n])
                    best_minimum[n] = T.Select(gain[n] > best[n], minimum[n], best_minimum[n])
                    best[n] = T.max(gain[n], best[n])
            for n in range(LANES):
                unit: T.let = T.Cast("float64", largest[n]) * T.float64(1 / UNIT)
                scales[b, n] = T.Cast("float32", best_scale[n] * unit)
                minima[b, n] = T.Cast("float32", best_minimum[n] * unit)

    return fit


@T.inline
def take_codes(x, code, scale, minimum, codes):
    """The nearest codes of a scale and a minimum, and their sum."""
    for n in range(LANES):
        codes[n] = T.float32(0)
    for i in range(GROUP):
        for n in range(LANES):
            step: T.let = T.Select(scale[n] == T.float32(0), T.float32(1), scale[n])
            nearest: T.let = T.nearbyint((x[i, n] + minimum[n]) / step)
            code[i, n] = T.min(T.max(nearest, T.float32(0)), T.float32(15))
            codes[n] = codes[n] + code[i, n]


def _refine() -> tirx.PrimFunc:
    """Step 3, read where it is needed: that takes longer than loading all of TVM."""

    @T.prim_func(s_tir=True)
    def refine(
        weights_handle: T.handle,
        scales_handle: T.handle,
        minima_handle: T.handle,
        scale_units_handle: T.handle,
        minimum_units_handle: T.handle,
        words_handle: T.handle,
        scale_sizes_handle: T.handle,
        minimum_sizes_handle: T.handle,
    ) -> None:
        blocks = T.int64()
        weights = T.match_buffer(weights_handle, (blocks, LANES, GROUP), "float32")
        scales = T.match_buffer(scales_handle, (blocks, LANES), "float32")
        minima = T.match_buffer(minima_handle, (blocks, LANES), "float32")
        scale_units = T.match_buffer(scale_units_handle, (blocks, LANES), "float32")
        minimum_units = T.match_buffer(minimum_units_handle, (blocks, LANES), "float32")
        words = T.match_buffer(words_handle, (blocks, LANES, GROUP // 8), "uint32")
        scale_sizes = T.match_buffer(scale_sizes_handle, (blocks, LANES), "uint8")
        minimum_sizes = T.match_buffer(minimum_sizes_handle, (blocks, LANES), "uint8")
        x = T.alloc_buffer((GROUP, LANES), "float32")
        code = T.alloc_buffer((GROUP, LANES), "float32")
        best_code = T.alloc_buffer((GROUP, LANES), "float32")
        first_s = T.alloc_buffer((LANES,), "float32")
        first_m = T.alloc_buffer((LANES,), "float32")
        s = T.alloc_buffer((LANES,), "float32")
        m = T.alloc_buffer((LANES,), "float32")
        best_s = T.alloc_buffer((LANES,), "float32")
        best_m = T.alloc_buffer((LANES,), "float32")
        scale = T.alloc_buffer((LANES,), "float32")
        minimum = T.alloc_buffer((LANES,), "float32")
        codes = T.alloc_buffer((LANES,), "float32")
        total = T.alloc_buffer((LANES,), "float64")
        error = T.alloc_buffer((LANES,), "float64")
        best = T.alloc_buffer((LANES,), "float64")
        used = T.alloc_buffer((LANES,), "uint32")
        for b in range(blocks):
            for n in range(LANES):
                total[n] = T.float64(0)
                best[n] = T.float64(3.0e38)
                best_s[n] = T.float32(0)
                best_m[n] = T.float32(0)
                d: T.let = scale_units[b, n]
                e: T.let = minimum_units[b, n]
                whole_s: T.let = T.nearbyint(
                    scales[b, n] / T.Select(d == T.float32(0), T.float32(1), d)
                )
                whole_m: T.let = T.nearbyint(
                    minima[b, n] / T.Select(e == T.float32(0), T.float32(1), e)
                )
                first_s[n] = T.min(whole_s, T.float32(TOP_SIZE))
                first_m[n] = T.min(whole_m, T.float32(TOP_SIZE))
            for i in range(GROUP):
                for n in range(LANES):
                    x[i, n] = weights[b, n, i]
                    total[n] = total[n] + T.Cast("float64", x[i, n])
                    best_code[i, n] = T.float32(0)
            for k in range(4):  # as they are; then s, s - 1, s + 1 with minima of their codes
                for n in range(LANES):
                    moved: T.let = T.Select(
                        k < 2, T.float32(0), T.Select(k == 2, T.float32(-1), T.float32(1))
                    )
                    s[n] = T.min(T.max(first_s[n] + moved, T.float32(0)), T.float32(TOP_SIZE))
                    m[n] = first_m[n]
                    scale[n] = s[n] * scale_units[b, n]
                    minimum[n] = m[n] * minimum_units[b, n]
                take_codes(x, code, scale, minimum, codes)
                if k > 0:
                    for n in range(LANES):
                        e1: T.let = minimum_units[b, n]
                        wide: T.let = T.Cast("float64", scale[n]) * T.Cast("float64", codes[n])
                        fitted: T.let = (wide - total[n]) / T.float64(GROUP)
                        sized: T.let = T.nearbyint(
                            fitted
                            / T.Cast("float64", T.Select(e1 == T.float32(0), T.float32(1), e1))
                        )
                        m[n] = T.Cast(
                            "float32", T.min(T.max(sized, T.float64(0)), T.float64(TOP_SIZE))
                        )
                        minimum[n] = m[n] * e1
                    take_codes(x, code, scale, minimum, codes)
                for n in range(LANES):
                    error[n] = T.float64(0)
                for i in range(GROUP):
                    for n in range(LANES):
                        off: T.let = T.Cast("float64", code[i, n] * scale[n] - minimum[n] - x[i, n])
                        error[n] = error[n] + off * off
                for n in range(LANES):
                    best_s[n] = T.Select(error[n] < best[n], s[n], best_s[n])
                    best_m[n] = T.Select(error[n] < best[n], m[n], best_m[n])
                for i in range(GROUP):
                    for n in range(LANES):
                        best_code[i, n] = T.Select(error[n] < best[n], code[i, n], best_code[i, n])
                for n in range(LANES):
                    best[n] = T.min(error[n], best[n])
            for n in range(LANES):
                scale_sizes[b, n] = T.Cast("uint8", best_s[n])
                minimum_sizes[b, n] = T.Cast("uint8", best_m[n])
            for j in range(GROUP // 8):
                for n in range(LANES):
                    used[n] = T.uint32(0)
                for k in range(8):
                    for n in range(LANES):
                        bits: T.let = T.Cast("uint32", T.Cast("int32", best_code[j * 8 + k, n]))
                        used[n] = used[n] | (bits << T.Cast("uint32", k * 4))
                for n in range(LANES):
                    words[b, n, j] = used[n]

    return refine

"""The search of `group_search` in NumPy, as its docstring says it, to compare with bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4_compile.operators.packings import NIBBLES
from gemma4_compile.quantization.group_search import RATIOS

Array = npt.NDArray[np.float32]
UNIT = np.float32(16384)


def values(words: npt.NDArray[np.uint32], scales: Array) -> Array:
    """What codes and scales mean, (n, 32)."""
    levels = NIBBLES.unpack(words).astype(np.float32) - np.float32(7)
    meant: Array = levels * scales[:, None]
    return meant


def held(numbers: Array, dtype: str) -> Array:
    """Numbers as a dtype holds them, bfloat16 among them."""
    if dtype != "bfloat16":
        return numbers.astype(dtype).astype(np.float32)
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _sums(x: Array, levels: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    dot, squares = np.zeros(len(x)), np.zeros(len(x))
    for i in range(32):  # one after the other: the order counts
        dot = dot + x[:, i].astype(np.float64) * levels[:, i]
        squares = squares + (levels[:, i] * levels[:, i]).astype(np.float64)
    return dot, squares


def search(weights: Array, dtype: str) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Values of groups of 32, and whether each group is exact."""
    meant, scales, exact = _found(weights, dtype, is_coarse=False)
    coarse = (scales < 64 * 2.0 ** (-24 if dtype == "float16" else -149)) & ~exact
    coarse &= weights.any(1)
    meant[coarse], _, exact[coarse] = _found(weights[coarse], dtype, is_coarse=True)
    return meant, exact


def _found(
    weights: Array, dtype: str, *, is_coarse: bool
) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Values, sizes of scales, and whether each group is exact."""
    half = dtype == "float16"
    smallest = np.float32(2.0**-24 if half else 2.0**-149)
    normal = 2.0**-14 if half else 2.0**-126
    one, zero = np.float32(1), np.float32(0)

    def rounded(step: Array) -> Array:
        step = np.minimum(held(step, dtype), np.float32(65504)) if half else step
        return np.maximum(step, smallest)

    turn = np.where(weights.max(1) >= -weights.min(1), one, -one)
    x = weights * turn[:, None]
    largest = np.abs(weights).max(1)
    more = np.where(largest < 2.0**-60, np.float32(2.0**64), one)
    over = UNIT / np.where(largest == 0, one, largest * more)
    whole = np.rint(x * more[:, None] * over[:, None])
    best: Any = -np.ones(len(x), np.float32)
    inverse: Any = np.zeros(len(x), np.float32)
    low: Any = np.full(len(x), -7, np.float32)
    for ratio in RATIOS:
        nearest = np.rint(whole * (ratio / UNIT))
        for least in (-7, -8):
            levels = np.clip(nearest, least, least + 15)
            a, b = (whole * levels).sum(1), (levels * levels).sum(1)
            score = a * a / np.maximum(b, 1)
            is_better = score > best
            inverse = np.where(is_better, b / np.maximum(a, 1), inverse)
            low = np.where(is_better, np.float32(least), low)
            best = np.maximum(score, best)
    bounds = low[:, None], low[:, None] + 15
    levels = np.clip(np.rint(whole * inverse[:, None]), *bounds)
    dot, squares = _sums(x, levels)
    fitted, factor, off = dot / np.maximum(squares, 1), np.ones(len(x)), np.full(len(x), np.inf)
    for k in range(1, 9):
        fits = (k * levels.max(1) <= low + 15) & (k * levels.min(1) >= low)
        by = np.abs(rounded((fitted / k).astype(np.float32)).astype(np.float64) * k - fitted)
        is_better = fits & (by < off)
        factor, off = np.where(is_better, k, factor), np.where(is_better, by, off)
    dot, squares = dot * factor, squares * factor**2
    error, step, level = np.zeros(len(x)), np.full(len(x), smallest), np.zeros_like(x)
    for is_plain in (False, False, False, True):
        tried = rounded(
            largest / np.float32(7) if is_plain else (dot / np.maximum(squares, 1)).astype("f4")
        )
        if is_plain:
            clips = (tried < normal) & (tried * np.float32(7) < largest)
            tried = tried + np.where(clips, smallest, zero)
            bounds = np.full((1, 1), -7, np.float32), np.full((1, 1), 7, np.float32)
        levels = np.clip(np.rint(x / tried[:, None]), *bounds)
        dot, squares = _sums(x, levels)
        wide = tried.astype(np.float64)
        found = wide * (wide * squares - 2 * dot)
        is_better = found < error
        error, step = np.where(is_better, found, error), np.where(is_better, tried, step)
        level = np.where(is_better[:, None], levels, level)
    for k in range(72 if is_coarse else 0):
        first = np.maximum(np.floor(largest / smallest / np.float32(12)), one)
        tried = (first + np.float32(k)) * smallest
        for least in (-7, -8):
            levels = np.clip(np.rint(x / tried[:, None]), least, least + 15)
            dot, squares = _sums(x, levels)
            wide = tried.astype(np.float64)
            found = wide * (wide * squares - 2 * dot)
            is_better = found < error
            error, step = np.where(is_better, found, error), np.where(is_better, tried, step)
            level = np.where(is_better[:, None], levels, level)
    low_step, high_step = _storing_steps(x, level)
    nearest_step = np.clip(step.astype(np.float64), low_step, high_step).astype(np.float32)
    nearest_step = rounded(nearest_step)
    unit = np.float32(2) ** np.floor(np.log2(nearest_step)) * np.float32(
        2.0 ** (-10 if half else -23)
    )
    chosen, exact = step, np.zeros(len(x), np.bool_)
    for k in (0, -1, 1):
        tried = nearest_step + np.float32(k) * np.maximum(unit, smallest)
        is_within = (low_step <= tried) & (tried <= high_step)
        chosen, exact = np.where(is_within & ~exact, tried, chosen), exact | is_within
    return (chosen * turn)[:, None] * level, chosen, exact


def _storing_steps(
    x: Array, level: Array
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The least and the most steps that give every weight as it is stored."""
    bits = x.view(np.uint32)
    used = np.bitwise_or.reduce(bits, axis=1)[:, None]
    places = np.where(used & 0xFFFF == 0, 8, np.where(used & 0x1FFF == 0, 11, 24))
    is_even = bits >> (24 - places).astype(np.uint32) & 1 == 0
    half = (bits & np.uint32(0x7F800000)).view(np.float32) * 2.0**-places
    half = np.where(is_even, half, half * (1 - 2.0**-10))  # a tie goes to the even neighbour
    below = np.where(bits & 0x7FFFFF == 0, half / 2, half)
    size = np.where(level < 0, -x, x).astype(np.float64)
    over = np.maximum(np.abs(level).astype(np.float64), 1)
    is_zero = level == 0
    least = np.where(is_zero, np.where(x == 0, 0.0, 3.0e38), (size - below) / over)
    most = np.where(is_zero, 3.0e38, (size + half) / over)
    return np.maximum(least.max(1), 0), most.min(1)

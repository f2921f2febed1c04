"""The search of `minima_search` in NumPy, as its docstring says it, to compare with bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4_compile.quantization.minima_search import RATIOS
from tests.unit.quantization.searched_groups import held

Array = npt.NDArray[np.float32]
ZERO, ONE = np.float32(0), np.float32(1)


def search(weights: Array) -> tuple[Array, Any, Any, Any]:
    """Units of blocks, then sizes of scales and minima and codes of groups."""
    scales, minima = fitted(weights)
    units = [
        held(found.reshape(-1, 8).max(1) / np.float32(63), "bfloat16") for found in (scales, minima)
    ]
    d, e = (np.repeat(unit, 8) for unit in units)
    divisors = [np.where(unit == 0, ONE, unit) for unit in (d, e)]
    first_s, first_m = (
        np.minimum(np.rint(found / divisor), np.float32(63))
        for found, divisor in zip((scales, minima), divisors, strict=True)
    )
    total = np.zeros(len(weights))
    for i in range(32):
        total = total + weights[:, i]
    best: Any = np.full(len(weights), 3.0e38)
    best_s, best_m, best_codes = np.zeros_like(d), np.zeros_like(d), np.zeros_like(weights)
    for tried in range(4):
        s = np.clip(first_s + np.float32((0, 0, -1, 1)[tried]), 0, 63).astype(np.float32)
        m = first_m
        codes = nearest(weights, s * d, m * e)
        if tried:
            sums = codes.sum(1).astype(np.float64)
            wanted = ((s * d).astype(np.float64) * sums - total) / 32
            m = np.clip(np.rint(wanted / divisors[1]), 0, 63).astype(np.float32)
            codes = nearest(weights, s * d, m * e)
        error = np.zeros(len(weights))
        for i in range(32):
            off = (codes[:, i] * (s * d) - m * e - weights[:, i]).astype(np.float64)
            error = error + off * off
        better = error < best
        best_s, best_m = np.where(better, s, best_s), np.where(better, m, best_m)
        best_codes = np.where(better[:, None], codes, best_codes)
        best = np.minimum(error, best)
    return np.stack(units, axis=1), best_s, best_m, best_codes


def nearest(weights: Array, scale: Array, minimum: Array) -> Array:
    """Codes of groups."""
    step = np.where(scale == 0, ONE, scale)[:, None]
    found: Array = np.clip(np.rint((weights + minimum[:, None]) / step), 0, 15)
    return found


def fitted(weights: Array) -> tuple[Array, Array]:
    """Scales and minima before they have sizes."""
    largest = np.abs(weights).max(1)
    largest = np.where(largest < 2.0**-100, ZERO, largest)
    inverse = np.where(largest == 0, ZERO, np.float32(16384) / np.maximum(largest, 2.0**-100))
    x = np.rint(weights * inverse[:, None].astype(np.float32)).astype(np.int64)
    low, high = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
    span = np.maximum(high - low, 1).astype(np.float32)
    best: Any = np.full(len(x), -1.0)
    scale: Any = np.zeros(len(x))
    minimum: Any = np.zeros(len(x))
    total = x.sum(1)
    for ratio in RATIOS:
        place = (x - low[:, None]).astype(np.float32) * (ratio / span)[:, None]
        codes = np.clip(np.rint(place), 0, 15).astype(np.int64)
        q, qq, qx = codes.sum(1), (codes * codes).sum(1), (codes * x).sum(1)
        spread, slope, height = 32 * qq - q * q, 32 * qx - q * total, qq * total - q * qx
        for row in range(len(x)):  # Python's integers are exact, its quotients rounded once
            if spread[row] > 0 and height[row] <= 0:
                over = int(spread[row])
                gain = (int(slope[row]) * int(qx[row]) + int(height[row]) * int(total[row])) / over
                found = int(slope[row]) / over, -int(height[row]) / over
            elif qq[row]:
                rise = max(int(qx[row]), 0)
                gain, found = rise * rise / int(qq[row]), (rise / int(qq[row]), 0.0)
            else:
                fall = min(int(total[row]), 0)
                gain, found = fall * fall / 32, (0.0, -fall / 32)
            if gain > best[row]:
                best[row], scale[row], minimum[row] = gain, *found
    unit = largest.astype(np.float64) / 16384
    return (scale * unit).astype(np.float32), (minimum * unit).astype(np.float32)

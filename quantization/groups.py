"""Integers in groups of input channels with one scale a group: the form is documented here, once.

A row of a matrix is cut into groups of ``group_size`` neighbouring input channels. Each group has
one scale, each weight one unsigned integer ``q`` of ``bits`` bits, and

    value = (q - zero_point) * scale,      zero_point = 2 ** (bits - 1) - 1

`packing` has the words. With 4 bits, groups of 32 and float16 scales this is the layout `q4f16_1`
of MLC-LLM 79d603f (python/mlc_llm/quantization/group_quantization.py).

Rounding. With 4 bits the scale is signed and q takes all 16 values: `group_search` finds the scale
of the smallest square error, and the one that weights were trained on. With 6 bits it is signed,
too, and of two steps the one with the smaller square error: the largest weight over 31, or over 32,
whose level -31 clips what is nearly as large on the other side. With 8 bits q is at most
``2 zero_point`` (bytes less 127 are int8) and the scale is ``max|w| / zero_point`` in float32,
rounded to the scale's dtype; below that dtype's normal range it is rounded up, so that coarse steps
clip nothing. Then ``q = zero_point + rint(w / scale)`` with the *rounded* scale, in float32, ties
to even, clipped. A group of zeros has scale 0 and ``q = zero_point``; no other group has scale 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.packing import ProductPacking, UInt32Array
from gemma4_compile.operators.packings import NIBBLES, SIXES, product_packing
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.group_search import search_groups
from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.quantization.scheme import (
    EVEN_ERROR,
    HALF_STEP,
    SMALLEST_F16,
    Float32Array,
    Scheme,
    StoredTensor,
    refuse_rows,
    stored_matrix,
)
from gemma4_compile.types import Array

ScaleArray = npt.NDArray[np.float16 | np.float32]

EXACT = 2.0**-7
"""Of a weight: bfloat16 rounds it by a quarter of that, and the one that gives its step, too."""
PEAK = 2.4  # deviations of the largest of a group of 32 in the mean
SEARCHED_ERROR = 0.0811  # of normal weights in groups of 32 with 16 levels, by `group_search`
TWO_STEPS_ERROR = 0.0206  # the same with 64 levels and two steps
EIGHT_BITS = Thresholds(5e-2, 0.85, 0.85, 0.99, 1.10)
FOUR_BITS = Thresholds(0.5, 0.60, 0.60, 0.80, 2.0)


@dataclass(frozen=True)
class GroupScheme(Scheme):
    """Integers of `bits` bits, `group_size` input channels to a scale.

    ``value = (q - zero_point) * scale`` with ``zero_point = 2**(bits - 1) - 1``. ``q_weight`` is
    ``(rows, cols * bits / 32)`` uint32, the lowest channel in the lowest bits; ``q_scale`` is
    ``(rows, cols / group_size)`` in `scale_dtype`. With 4 bits and float16 this is MLC-LLM's
    `q4f16_1`.
    """

    bits: int
    scale_dtype: str
    group_size: int = 32

    @property
    def name(self) -> str:
        """Name in the metadata, MLC's spelling."""
        return f"q{self.bits}{'f16' if self.scale_dtype == 'float16' else 'f32'}_1"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """See `Scheme`."""
        return "uint32", self.scale_dtype

    @property
    def takes_int8(self) -> bool:
        """See `Scheme`."""
        return self.layout(self.group_size, (1,)).takes_int8

    @property
    def packing(self) -> ProductPacking:
        """How its integers lie in words."""
        return product_packing(self.bits)

    @property
    def zero_point(self) -> int:
        """The stored integer that means 0."""
        return self.packing.zero_point

    @property
    def is_searched(self) -> bool:
        """Whether the best scale of a group is searched: so few levels need it."""
        return self.packing == NIBBLES

    @property
    def has_two_steps(self) -> bool:
        """Whether the better of two steps is taken: more would gain little of so many levels."""
        return self.packing == SIXES

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """See `Scheme`: of a matrix whose columns groups divide."""
        if len(shape) != 2 or shape[1] % self.group_size:
            raise QuantizationError(
                f"`{stem}` of shape {shape} cannot be stored as {self.name}: groups of "
                f"{self.group_size} must divide the number of columns",
                hint="use --quant f16 or f32",
            )
        rows, cols = shape
        return stored_matrix(stem, suffix, rows, self.layout(cols, (rows,)))

    def layout(self, cols: int, split_rows: tuple[int, ...]) -> WeightLayout:
        """See `Scheme`."""
        return WeightLayout(self.bits, self.scale_dtype, self.group_size, cols, split_rows)

    def store(self, rows: Float32Array, *, name: str, first_row: int) -> tuple[Array, ...]:
        """See `Scheme`."""
        return quantize(rows, self, name=name, first_row=first_row)

    def load(self, arrays: Sequence[Array]) -> Float32Array:
        """See `Scheme`."""
        q_weight, q_scale = arrays
        return dequantize(q_weight, q_scale, self)

    @property
    def dense(self) -> Scheme:
        """See `Scheme`."""
        return DenseScheme(self.scale_dtype)

    @property
    def mean_error(self) -> float:
        """See `Scheme`."""
        if self.has_two_steps:
            return TWO_STEPS_ERROR
        return SEARCHED_ERROR if self.is_searched else step_error(self.zero_point)

    @property
    def row_bound(self) -> tuple[float, float]:
        """See `Scheme`.

        Half a step of a group is its largest weight over twice the levels, and that weight is part
        of the row's length. A group with a choice of steps is no worse than that.
        """
        smallest = SMALLEST_F16 * self.zero_point if self.scale_dtype == "float16" else 0.0
        relative = math.sqrt(self.group_size) / (2 * self.zero_point)
        return relative + 4 * HALF_STEP["float16"], smallest

    @property
    def thresholds(self) -> Thresholds:
        """See `Scheme`."""
        return EIGHT_BITS if self.bits >= 8 else FOUR_BITS


def step_error(levels: int) -> float:
    """Relative error of values that groups of 32 round to so many levels on each side of 0."""
    return PEAK / levels * EVEN_ERROR


def _largest_magnitudes(weight: Float32Array, group_size: int) -> Float32Array:
    """The largest magnitude of each group, (rows, cols / group_size); NaN if there is one.

    Magnitudes are compared as integers, whose order is the same (NaN above infinity), and pair by
    pair over the whole array: NumPy reduces short axes at a sixth of that speed.
    """
    rows, cols = weight.shape
    largest = np.abs(weight).reshape(-1).view(np.int32)
    assert group_size & (group_size - 1) == 0, "groups are halved until one value is left"
    for _ in range(group_size.bit_length() - 1):
        largest = np.maximum(largest[0::2], largest[1::2])
    return largest.view(np.float32).reshape(rows, cols // group_size)


def _scales(largest: Float32Array, scheme: GroupScheme) -> ScaleArray:
    """Scales of groups whose largest magnitude is `largest` (finite), in the scale's dtype."""
    exact = largest / np.float32(scheme.zero_point)
    dtype = np.dtype(scheme.scale_dtype)
    scales = _rounded(exact, scheme)
    normal = np.finfo(dtype).smallest_normal
    short = (exact < normal) & (scales.astype(np.float64) * scheme.zero_point < largest)
    if short.any():
        scales[short] = np.nextafter(scales[short], dtype.type(np.inf))
    return scales


def _rounded(scales: Float32Array, scheme: GroupScheme) -> ScaleArray:
    """Scales in their dtype, infinite where it cannot hold them."""
    with np.errstate(over="ignore"):
        return scales.astype(scheme.scale_dtype)


def quantize(
    weight: Float32Array, scheme: GroupScheme, *, name: str = "weight", first_row: int = 0
) -> tuple[UInt32Array, ScaleArray]:
    """Quantise a matrix in groups of input channels and pack it into 32-bit words.

    Parameters
    ----------
    weight : (rows, cols), float32; group_size divides cols
    name, first_row : what errors call the matrix, and its first row

    Returns
    -------
    tuple
        q_weight: (rows, cols * bits / 32), uint32. q_scale: (rows, cols / group_size), scale_dtype.

    Raises
    ------
    QuantizationError
        If a weight is not finite, or a scale is too large for its dtype.
    """
    rows, cols = weight.shape
    largest = _largest_magnitudes(weight, scheme.group_size)
    refuse_rows(~np.isfinite(largest), name, first_row, "holds a weight that is not finite")
    unheld = f"needs a scale that {scheme.scale_dtype} cannot hold"
    if scheme.is_searched:
        refuse_rows(
            ~np.isfinite(_rounded(largest / np.float32(8), scheme)), name, first_row, unheld
        )
        found = search_groups(weight.reshape(-1, scheme.group_size), scheme.scale_dtype)
        scales = found.scales.astype(scheme.scale_dtype).reshape(largest.shape)
        return found.words.reshape(rows, -1), scales
    scales = _scales(largest, scheme)
    refuse_rows(~np.isfinite(scales), name, first_row, unheld)
    groups = weight.reshape(rows, cols // scheme.group_size, scheme.group_size)
    zero = scheme.zero_point
    if scheme.has_two_steps:
        levels, scales = _better_step(groups, scales, scheme)
    else:
        levels = _levels(groups, scales, -zero, zero)
    levels += np.float32(zero)
    return scheme.packing.pack(levels.astype(np.uint8).reshape(rows, cols)), scales


def _levels(groups: Float32Array, scales: ScaleArray, low: int, high: int) -> Float32Array:
    """The nearest levels of groups (rows, groups, group_size) on their scales (rows, groups)."""
    divisor = scales.astype(np.float32)
    divisor[divisor == 0] = 1  # a group of zeros
    ratio: Float32Array = groups / divisor[:, :, None]
    np.rint(ratio, out=ratio)
    np.clip(ratio, np.float32(low), np.float32(high), out=ratio)
    return ratio


def _better_step(
    groups: Float32Array, sizes: ScaleArray, scheme: GroupScheme
) -> tuple[Float32Array, ScaleArray]:
    """Levels and scales of the better of two steps, of equal ones the wider.

    Parameters
    ----------
    sizes : magnitudes of the wider one, which clips nothing
    """
    low, high = -scheme.zero_point, scheme.zero_point + 1
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    wide = np.copysign(sizes, extreme).astype(sizes.dtype)
    narrow = _rounded(extreme / np.float32(high), scheme)
    levels, others = (_levels(groups, scales, low, high) for scales in (wide, narrow))
    better = _square_error(groups, others, narrow) < _square_error(groups, levels, wide)
    np.copyto(levels, others, where=better[:, :, None])
    return levels, np.where(better, narrow, wide)


def _square_error(groups: Float32Array, levels: Float32Array, scales: ScaleArray) -> Float32Array:
    """Square errors (rows, groups), added pair by pair: in the same order on every machine."""
    with np.errstate(over="ignore"):
        parts = levels * scales.astype(np.float32)[:, :, None]
        parts -= groups
        parts *= parts
        while parts.shape[2] > 1:
            parts = parts[:, :, 0::2] + parts[:, :, 1::2]
    return parts[:, :, 0]


def dequantize(q_weight: UInt32Array, q_scale: ScaleArray, scheme: GroupScheme) -> Float32Array:
    """The float32 matrix that the stored tensors mean, (rows, cols)."""
    values = scheme.packing.unpack(q_weight).astype(np.float32) - np.float32(scheme.zero_point)
    rows, cols = values.shape
    groups = values.reshape(rows, cols // scheme.group_size, scheme.group_size)
    result: Float32Array = (groups * q_scale.astype(np.float32)[:, :, None]).reshape(rows, cols)
    return result


def exact_groups(
    weights: Float32Array, stored: Float32Array, group_size: int
) -> npt.NDArray[np.bool_]:
    """Whether every weight of a group is stored with no more error than floats have, (groups,).

    Among weights that lie anywhere there are none: all of a group would be near a level by chance.
    `FoundGroups.exact` is stricter: a step that float16 rounds is exact here alone.
    """
    off = np.abs(stored - weights) > np.float32(EXACT) * np.abs(weights)
    return ~off.reshape(-1, group_size).any(axis=1)

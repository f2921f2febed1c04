"""NumPy quantise, dequantise, pack and unpack; the bit layout is documented here, once.

A row of a matrix is cut into groups of ``group_size`` neighbouring input channels. Each group has
one scale, each weight one unsigned integer ``q`` of ``bits`` bits, and

    value = (q - zero_point) * scale,      zero_point = 2 ** (bits - 1) - 1,  0 <= q <= 2 zero_point

Channel ``c`` of a row lies in word ``c // n``, bits ``bits * (c % n)`` upwards, with
``n = 32 / bits`` channels to a word: the lowest channel in the lowest bits. With 4 bits, groups of
32 and float16 scales this is the layout `q4f16_1` of MLC-LLM 79d603f
(python/mlc_llm/quantization/group_quantization.py).

Rounding. The scale is ``max|w| / zero_point`` in float32, rounded to the scale's dtype;
below that dtype's normal range it is rounded up, so that coarse steps clip nothing. Then
``q = zero_point + rint(w / scale)`` with the *rounded* scale, in float32, ties to even, clipped. A
group of zeros has scale 0 and ``q = zero_point``; no other group has scale 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import QuantizationError
from gemma4_compile.quantization.scheme import GroupScheme
from gemma4_compile.types import Array

Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
ScaleArray = npt.NDArray[np.float16 | np.float32]


def pack(values: UInt8Array, bits: int) -> UInt32Array:
    """Pack integers of 4 or 8 bits into words.

    Parameters
    ----------
    values : (rows, cols), uint8, each below ``2**bits``; ``32 / bits`` divides cols

    Returns
    -------
    UInt32Array
        (rows, cols * bits / 32)
    """
    if bits == 4:
        pairs = np.ascontiguousarray(values).view("<u2")  # the even channel is the low byte
        values = (pairs | (pairs >> np.uint16(4))).astype(np.uint8)
    else:
        assert bits == 8, f"no layout for {bits} bits"
    return np.ascontiguousarray(values).view("<u4").astype(np.uint32, copy=False)


def unpack(words: UInt32Array, bits: int) -> UInt8Array:
    """Undo :func:`pack`: (rows, words) uint32 to (rows, words * 32 / bits) uint8."""
    octets = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    if bits == 8:
        return octets
    assert bits == 4, f"no layout for {bits} bits"
    values = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
    values[:, 0::2] = octets & np.uint8(15)
    values[:, 1::2] = octets >> np.uint8(4)
    return values


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
    with np.errstate(over="ignore"):
        scales = exact.astype(dtype)
    normal = np.finfo(dtype).smallest_normal
    short = (exact < normal) & (scales.astype(np.float64) * scheme.zero_point < largest)
    if short.any():
        scales[short] = np.nextafter(scales[short], dtype.type(np.inf))
    return scales


def _refuse_row(bad: npt.NDArray[np.bool_], name: str, first_row: int, what: str) -> None:
    if bad.any():
        row = first_row + int(np.argmax(bad.reshape(bad.shape[0], -1).any(axis=1)))
        raise QuantizationError(
            f"`{name}`: row {row} {what}",
            hint="the checkpoint is damaged, or needs --quant f32",
        )


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
    groups = weight.reshape(rows, cols // scheme.group_size, scheme.group_size)
    largest = _largest_magnitudes(weight, scheme.group_size)
    _refuse_row(~np.isfinite(largest), name, first_row, "holds a weight that is not finite")
    scales = _scales(largest, scheme)
    _refuse_row(
        ~np.isfinite(scales),
        name,
        first_row,
        f"needs a scale that {scheme.scale_dtype} cannot hold",
    )
    divisor = scales.astype(np.float32)
    divisor[divisor == 0] = 1  # a group of zeros
    ratio = groups / divisor[:, :, None]
    np.rint(ratio, out=ratio)
    limit = np.float32(scheme.zero_point)
    np.clip(ratio, -limit, limit, out=ratio)
    ratio += limit
    return pack(ratio.astype(np.uint8).reshape(rows, cols), scheme.bits), scales


def dequantize(q_weight: UInt32Array, q_scale: ScaleArray, scheme: GroupScheme) -> Float32Array:
    """The float32 matrix that the stored tensors mean, (rows, cols)."""
    values = unpack(q_weight, scheme.bits).astype(np.float32) - np.float32(scheme.zero_point)
    rows, cols = values.shape
    groups = values.reshape(rows, cols // scheme.group_size, scheme.group_size)
    result: Float32Array = (groups * q_scale.astype(np.float32)[:, :, None]).reshape(rows, cols)
    return result


def to_dense(
    values: Float32Array, dtype: str, *, name: str = "weight", first_row: int = 0
) -> Array:
    """Round a matrix or vector to `dtype` (nearest, ties to even).

    Raises
    ------
    QuantizationError
        If a value is not finite, or too large for `dtype`.
    """
    _refuse_row(~np.isfinite(values), name, first_row, "holds a weight that is not finite")
    with np.errstate(over="ignore"):
        dense = values.astype(np.dtype(dtype))
    _refuse_row(~np.isfinite(dense), name, first_row, f"holds a weight that {dtype} cannot hold")
    return dense

"""Ways to round a matrix that people use, as NumPy: values in, the values that would be stored out.

Written from the formats' documentation. `benchmarks.rounding_loss` compares them on weights and in
models. A scale that a format keeps in float16 is rounded to it here. Blocks run along rows; where a
row ends within a super-block of Q4_K or Q6_K, the super-block is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from gemma4_compile.quantization.schemes import SCHEMES

Float32Array = npt.NDArray[np.float32]
Rounding = Callable[[Float32Array], Float32Array]
"""Blocks (blocks, values) to the values that they have once stored."""

CODEBOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""The 16 values of IQ4_NL."""
_SUPER = 256
_CHUNK = 1 << 19  # values that are rounded at once


@dataclass(frozen=True)
class Quantizer:
    """A form of storage and the rule that chooses its numbers.

    Attributes
    ----------
    bits : a weight, scales and minima included
    block : neighbouring weights of a row that are rounded together
    rounding : of blocks
    """

    bits: float
    block: int
    rounding: Rounding

    def __call__(self, weight: Float32Array) -> Float32Array:
        """The values that a matrix (rows, cols) has once stored."""
        return np.concatenate([self._rows(rows) for rows in _pieces(weight)])

    def _rows(self, rows: Float32Array) -> Float32Array:
        whole = rows.shape[1] // self.block * self.block
        parts = [rows[:, :whole], rows[:, whole:]]
        done = [
            self.rounding(part.reshape(-1, min(self.block, part.shape[1]))).reshape(part.shape)
            for part in parts
            if part.size
        ]
        return np.concatenate(done, axis=1)


def _pieces(weight: Float32Array) -> Iterator[Float32Array]:
    size = max(1, _CHUNK // weight.shape[1])
    for begin in range(0, len(weight), size):
        yield np.ascontiguousarray(weight[begin : begin + size])


def _half(values: Float32Array) -> Float32Array:
    return values.astype(np.float16).astype(np.float32)


def _divided(x: Float32Array, by: Float32Array) -> Float32Array:
    """``x / by``, and 0 where `by` is 0."""
    return np.divide(x, by, out=np.zeros(np.broadcast_shapes(x.shape, by.shape), np.float32),
                     where=by != 0)  # fmt: skip


def _extreme(x: Float32Array) -> Float32Array:
    """The value of largest magnitude of each block, with its sign: (blocks, 1)."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)


def _sum(values: Float32Array) -> Float32Array:
    return values.sum(axis=1, keepdims=True)


def largest(x: Float32Array, *, levels: int) -> Float32Array:
    """``max|w| / levels`` is the step: the simplest rule, with 2 levels + 1 codes."""
    scale = _half(np.abs(x).max(axis=1, keepdims=True) / np.float32(levels))
    return np.clip(np.rint(_divided(x, scale)), -levels, levels) * scale


def q4_0(x: Float32Array) -> Float32Array:
    """llama.cpp's Q4_0: the largest weight is code -8 exactly."""
    scale = _extreme(x) / np.float32(-8)
    codes = np.clip(np.trunc(_divided(x, scale) + np.float32(8.5)), 0, 15)
    return (codes - 8) * _half(scale)


def _searched(x: Float32Array, levels: int, weights: Float32Array) -> tuple[Float32Array, ...]:
    """Scale and codes in [-levels, levels) by llama.cpp's search over 19 scales."""
    extreme = _extreme(x)
    best, scale = np.full_like(extreme, -1), np.zeros_like(extreme)
    codes = np.zeros_like(x)
    for step in range(-9, 10):
        inverse = _divided(np.full_like(extreme, -(levels + 0.1 * step)), extreme)
        tried = np.clip(np.rint(x * inverse), -levels, levels - 1)
        product, square = _sum(weights * x * tried), _sum(weights * tried * tried)
        merit = _divided(product * product, square)
        better = merit > best
        best = np.where(better, merit, best)
        scale = np.where(better, _divided(product, square), scale)
        codes = np.where(better, tried, codes)
    return scale, codes


def q4_0_searched(x: Float32Array) -> Float32Array:
    """Q4_0 whose scale is searched, as llama.cpp does where it weighs errors."""
    weights = np.sqrt((x * x).mean(axis=1, keepdims=True) + x * x)
    scale, codes = _searched(x, 8, weights)
    return codes * _half(scale)


def signed(x: Float32Array, *, bits: int, ratios: tuple[float, ...]) -> Float32Array:
    """All codes of a signed scale: of every ratio and both signs the one with the least error.

    Parameters
    ----------
    ratios : steps of the largest weight that are tried; each is then fitted by least squares
    """
    low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    extreme = _extreme(x)
    found, least = np.zeros_like(x), _sum(x * x)
    for ratio in (*ratios, *(-ratio for ratio in ratios)):
        scale = _half(extreme / np.float32(-ratio))
        for _ in range(2):
            codes = np.clip(np.rint(_divided(x, scale)), low, high)
            scale = _half(_divided(_sum(codes * x), _sum(codes * codes)))
        codes = np.clip(np.rint(_divided(x, scale)), low, high)
        value = codes * scale
        error = _sum((value - x) ** 2)
        better = error < least
        found, least = np.where(better, value, found), np.where(better, error, least)
    return found


def _ratios(bits: int, count: int) -> tuple[float, ...]:
    top = 2.0 ** (bits - 1)
    return tuple(np.linspace(0.8 * top, 1.3 * top, count).tolist())


def q4_k(x: Float32Array, *, top: int = 15) -> Float32Array:
    """llama.cpp's Q4_K: groups of 32 with a scale and a minimum of 6 bits, two float16 a block.

    Parameters
    ----------
    top : the highest code; 7 and 3 are the same idea with 3 and 2 bits
    """
    shape, groups = x.shape, x.reshape(-1, 32)
    scale, low = _with_minimum(groups, top)
    per_block = (shape[0], shape[1] // 32)
    step, offset = scale.reshape(per_block), -low.reshape(per_block)
    d, d_min = (values.max(axis=1, keepdims=True) / np.float32(63) for values in (step, offset))
    step = _half(d) * np.clip(np.rint(_divided(step, d)), 0, 63)
    offset = _half(d_min) * np.clip(np.rint(_divided(offset, d_min)), 0, 63)
    step, offset = step.reshape(-1, 1), offset.reshape(-1, 1)
    codes = np.clip(np.rint(_divided(groups + offset, step)), 0, top)
    return (codes * step - offset).reshape(shape)


def _with_minimum(x: Float32Array, top: int) -> tuple[Float32Array, Float32Array]:
    """Scale and minimum (at most 0) of groups by llama.cpp's search, codes 0 to `top`."""
    weights = np.sqrt((x * x).mean(axis=1, keepdims=True)) + np.abs(x)
    minimum = np.minimum(x.min(axis=1, keepdims=True), 0)
    span = x.max(axis=1, keepdims=True) - minimum
    scale = span / np.float32(top)
    codes = np.clip(np.rint(_divided(x - minimum, scale)), 0, top)
    least = _sum(weights * (codes * scale + minimum - x) ** 2)
    low, total, first = minimum, _sum(weights), _sum(weights * x)
    for step in range(21):
        inverse = _divided(np.full_like(span, top - 1 + 0.1 * step), span)
        codes = np.clip(np.rint(inverse * (x - minimum)), 0, top)
        sums, squares = _sum(weights * codes), _sum(weights * codes * codes)
        products = _sum(weights * codes * x)
        determinant = total * squares - sums * sums
        tried = _divided(total * products - first * sums, determinant)
        offset = _divided(squares * first - sums * products, determinant)
        above = offset > 0
        tried = np.where(above, _divided(products, squares), tried)
        offset = np.where(above, 0, offset)
        error = _sum(weights * (codes * tried + offset - x) ** 2)
        better = (error < least) & (determinant > 0)
        least = np.where(better, error, least)
        scale, low = np.where(better, tried, scale), np.where(better, offset, low)
    return scale, low


def q6_k(x: Float32Array) -> Float32Array:
    """llama.cpp's Q6_K: groups of 16 with a scale of 8 bits, one float16 a block of 256."""
    shape, groups = x.shape, x.reshape(-1, 16)
    scale, _ = _searched(groups, 32, groups * groups)
    scale = scale.reshape(shape[0], shape[1] // 16)
    d = _extreme(scale) / np.float32(-128)
    step = _half(d) * np.minimum(np.rint(_divided(scale, d)), 127)
    step = step.reshape(-1, 1)
    return (np.clip(np.rint(_divided(groups, step)), -32, 31) * step).reshape(shape)


def iq4_nl(x: Float32Array) -> Float32Array:
    """llama.cpp's IQ4_NL: 16 uneven levels times a float16 scale, searched over 15 of them."""
    extreme, weights = _extreme(x), x * x
    best, scale = np.full_like(extreme, -1), np.zeros_like(extreme)
    for step in range(-7, 8):
        inverse = _divided(np.full_like(extreme, CODEBOOK[0] + step), extreme)
        values = _nearest(x * inverse)
        product, square = _sum(weights * x * values), _sum(weights * values * values)
        merit = _divided(product * product, square)
        better = merit > best
        best = np.where(better, merit, best)
        scale = np.where(better, _divided(product, square), scale)
    scale = _half(scale)
    return _nearest(_divided(x, scale)) * scale


def _nearest(x: Float32Array) -> Float32Array:
    return CODEBOOK[np.searchsorted((CODEBOOK[1:] + CODEBOOK[:-1]) / 2, x)]


def affine(x: Float32Array, *, bits: int) -> Float32Array:
    """MLX's affine groups: scale and bias in float16, the end that is larger is kept exactly."""
    top = np.float32(2**bits - 1)
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    from_low = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / top, np.float32(1e-7)) * np.where(from_low, 1, -1)
    scale = scale.astype(np.float32)
    edge = np.where(from_low, low, high)
    zero = np.rint(edge / scale)
    scale = np.where(zero != 0, edge / np.where(zero == 0, 1, zero), scale)
    bias = np.where(zero != 0, edge, 0).astype(np.float32)
    codes = np.clip(np.rint((x - bias) / scale), 0, top)
    return codes * _half(scale) + _half(bias)


def product(x: Float32Array, *, scheme: str) -> Float32Array:
    """What the compiler itself stores."""
    stored = SCHEMES[scheme].store(x, name="weight", first_row=0)
    return SCHEMES[scheme].load(stored)


QUANTIZERS: Mapping[str, Quantizer] = {
    "max7": Quantizer(4.5, 32, partial(largest, levels=7)),
    "q4f16": Quantizer(4.5, 32, partial(product, scheme="q4f16_1")),
    "signed": Quantizer(4.5, 32, partial(signed, bits=4, ratios=_ratios(4, 33))),
    "Q4_0": Quantizer(4.5, 32, q4_0),
    "Q4_0 searched": Quantizer(4.5, 32, q4_0_searched),
    "IQ4_NL": Quantizer(4.5, 32, iq4_nl),
    "MLX 4, groups of 64": Quantizer(4.5, 64, partial(affine, bits=4)),
    "Q4_K": Quantizer(4.5, _SUPER, q4_k),
    "q4_k": Quantizer(4.5, _SUPER, partial(product, scheme="q4_k")),
    "2 bits, minima": Quantizer(2.5, _SUPER, partial(q4_k, top=3)),
    "3 bits, minima": Quantizer(3.5, _SUPER, partial(q4_k, top=7)),
    "signed 3": Quantizer(3.5, 32, partial(signed, bits=3, ratios=_ratios(3, 33))),
    "signed 5": Quantizer(5.5, 32, partial(signed, bits=5, ratios=_ratios(5, 17))),
    "signed 6": Quantizer(6.5, 32, partial(signed, bits=6, ratios=_ratios(6, 9))),
    "q6f16": Quantizer(6.5, 32, partial(product, scheme="q6f16_1")),
    "Q6_K": Quantizer(6.5625, _SUPER, q6_k),
    "q8f16": Quantizer(8.5, 32, partial(product, scheme="q8f16_1")),
}
"""By the names that people know them by; those in lower case with f16 and `q4_k` are our own."""

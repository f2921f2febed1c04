"""Integers in groups: tensors, and the rounding rule against loops in Python's fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import floats, integers

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.packings import NIBBLES, SIXES
from gemma4_compile.quantization.dense import to_dense
from gemma4_compile.quantization.group_search import search_groups
from gemma4_compile.quantization.groups import GroupScheme, dequantize, quantize
from gemma4_compile.quantization.scheme import StoredTensor

SCHEMES = [GroupScheme(bits, dtype) for bits in (4, 6, 8) for dtype in ("float16", "float32")]
Q4F16, Q6F16, Q8F16 = (GroupScheme(bits, "float16") for bits in (4, 6, 8))


def random_matrix(rows: int, cols: int, size: float = 0.02) -> np.ndarray:
    rng = np.random.default_rng(7)
    return (size * rng.standard_normal((rows, cols))).astype(np.float32)


def nearest_even(value: Fraction) -> int:
    return round(value)  # Python rounds ties to even, exactly


@pytest.mark.parametrize(
    ("scheme", "name", "zero_point", "run"),
    [
        (GroupScheme(4, "float16"), "q4f16_1", 7, 8),
        (GroupScheme(4, "float32"), "q4f32_1", 7, 8),
        (GroupScheme(6, "float16"), "q6f16_1", 31, 16),
        (GroupScheme(8, "float16"), "q8f16_1", 127, 4),
    ],
)
def test_group_schemes(scheme: GroupScheme, name: str, zero_point: int, run: int) -> None:
    assert scheme.name == name
    assert scheme.zero_point == zero_point
    assert scheme.packing.run == run


def test_a_quantised_matrix_is_stored_as_words_and_scales() -> None:
    assert GroupScheme(4, "float16").tensors("o_proj", ".part1", (6, 64)) == (
        StoredTensor("o_proj.q_weight.part1", (6, 8), "uint32"),
        StoredTensor("o_proj.q_scale.part1", (6, 2), "float16"),
    )


def test_q4f16_takes_four_and_a_half_bits_a_weight() -> None:
    tensors = GroupScheme(4, "float16").tensors("w", "", (128, 1536))

    assert sum(tensor.nbytes for tensor in tensors) * 8 == 128 * 1536 * 4.5


@pytest.mark.parametrize("shape", [(4, 48), (4, 16), (64,)])
def test_groups_must_divide_the_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(QuantizationError, match=r"`w`.*groups of 32"):
        GroupScheme(4, "float16").tensors("w", "", shape)


@pytest.mark.parametrize("scheme", SCHEMES[4:], ids=lambda scheme: scheme.name)
def test_quantise_is_the_documented_rule(scheme: GroupScheme) -> None:
    weight = random_matrix(3, 64)
    words, scales = quantize(weight, scheme)
    assert words.shape == (3, 64 * scheme.bits // 32)
    assert words.dtype == np.uint32
    assert scales.dtype == scheme.scale_dtype
    integers = scheme.packing.unpack(words)
    for row in range(3):
        for group in range(2):
            channels = slice(32 * group, 32 * group + 32)
            largest = max(abs(float(w)) for w in weight[row, channels])
            exact = np.float32(np.float32(largest) / np.float32(scheme.zero_point))
            assert scales[row, group] == exact.astype(scheme.scale_dtype)
            scale = Fraction(float(scales[row, group]))
            expected = [
                scheme.zero_point + nearest_even(Fraction(float(w)) / scale)
                for w in weight[row, channels]
            ]
            assert integers[row, channels].tolist() == expected


@pytest.mark.parametrize("scheme", SCHEMES[:2], ids=lambda scheme: scheme.name)
def test_four_bits_are_searched(scheme: GroupScheme) -> None:
    weight = random_matrix(3, 64)
    words, scales = quantize(weight, scheme)
    assert words.dtype == np.uint32
    assert scales.dtype == scheme.scale_dtype
    found = search_groups(weight.reshape(6, 32), scheme.scale_dtype)
    assert np.array_equal(words, found.words.reshape(3, 8))
    assert np.array_equal(scales, found.scales.reshape(3, 2))
    assert NIBBLES.unpack(words).max() == 15


@pytest.mark.parametrize("scheme", SCHEMES[2:4], ids=lambda scheme: scheme.name)
def test_six_bits_take_the_better_of_two_steps(scheme: GroupScheme) -> None:
    weight = random_matrix(24, 64)
    words, scales = quantize(weight, scheme)
    integers = scheme.packing.unpack(words).astype(int) - 31
    chosen = set()
    for group, levels, scale in zip(
        weight.reshape(-1, 32), integers.reshape(-1, 32), scales.reshape(-1), strict=True
    ):
        extreme = group[np.abs(group).argmax()]
        tried = [
            float(np.float32(extreme / np.float32(top)).astype(scale.dtype)) for top in (31, 32)
        ]
        errors = []
        for step in tried:
            nearest = np.clip(
                [nearest_even(Fraction(float(w)) / Fraction(step)) for w in group], -31, 32
            )
            errors.append(((nearest * step - group.astype(np.float64)) ** 2).sum())
        best = int(errors[1] < errors[0])
        chosen.add(best)
        assert scale == tried[best]
        assert ((levels * tried[best] - group) ** 2).sum() == pytest.approx(errors[best], rel=1e-5)
    assert chosen == {0, 1}


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_error_is_at_most_half_a_step(scheme: GroupScheme) -> None:
    weight = random_matrix(16, 128)
    words, scales = quantize(weight, scheme)
    error = np.abs(dequantize(words, scales, scheme) - weight).reshape(16, 4, 32)
    steps = np.abs(scales.astype(np.float64))
    # What is beyond the last level is clipped: by the float16 rounding, or where it pays.
    rounding = scheme.zero_point * 2.0**-11 if scheme.scale_dtype == "float16" else 1e-5
    clipped = {4: 1.0, 6: 0.5, 8: 0.0}[scheme.bits]
    assert (error.max(axis=2) <= (0.5 + rounding + clipped) * steps).all()
    assert (np.median(error, axis=2) <= 0.5 * steps).all()


@given(
    codes=arrays(np.uint8, (3, 64), elements=integers(0, 63)),
    exponents=arrays(np.int8, (3, 2), elements=integers(-14, 3)),
    signs=arrays(np.bool_, (3, 2)),
)
def test_six_bits_of_a_whole_range_come_back(
    codes: np.ndarray, exponents: np.ndarray, signs: np.ndarray
) -> None:
    """Of groups whose largest weight is level 31 or 32, which are the two that are tried."""
    for top in (62, 63):
        codes[:, 0::32] = top
        codes = np.minimum(codes, top)
        codes = np.maximum(codes, 62 - top + 1)
        scales = np.where(signs, -1, 1) * np.exp2(exponents).astype(np.float16)
        weight = dequantize(SIXES.pack(codes), scales.astype(np.float16), Q6F16)
        assert np.array_equal(dequantize(*quantize(weight, Q6F16), Q6F16), weight)


@given(
    codes=arrays(np.uint8, (3, 64), elements=integers(0, 15)),
    sizes=arrays(np.float16, (3, 2), elements=floats(2.0**-14, 8, width=16)),
    signs=arrays(np.bool_, (3, 2)),
)
def test_all_codes_and_both_signs_come_back(
    codes: np.ndarray, sizes: np.ndarray, signs: np.ndarray
) -> None:
    scales = np.where(signs, -sizes, sizes).astype(np.float16)
    assert np.array_equal(NIBBLES.unpack(NIBBLES.pack(codes)), codes)
    weight = dequantize(NIBBLES.pack(codes), scales, Q4F16)
    assert np.array_equal(dequantize(*quantize(weight, Q4F16), Q4F16), weight)


def test_group_of_zeros_is_exact() -> None:
    weight = random_matrix(2, 64)
    weight[1, 32:] = 0
    words, scales = quantize(weight, Q4F16)
    assert scales[1, 1] == 0
    assert (NIBBLES.unpack(words)[1, 32:] == 7).all()
    assert (dequantize(words, scales, Q4F16)[1, 32:] == 0).all()


def test_group_of_zeros_in_six_bits_is_exact() -> None:
    words, scales = quantize(np.zeros((1, 32), np.float32), Q6F16)
    assert scales[0, 0] == 0
    assert (SIXES.unpack(words) == 31).all()


@pytest.mark.parametrize("size", [1e-4, 1e-6, 3e-7, 1e-7, 1e-9, 1e-30])
def test_tiny_group_keeps_a_scale_and_clips_nothing(size: float) -> None:
    weight = random_matrix(4, 32, size)
    words, scales = quantize(weight, Q8F16)
    assert (scales > 0).all()
    steps = scales.astype(np.float64)
    error = np.abs(dequantize(words, scales, Q8F16) - weight.astype(np.float64))
    assert (error <= 0.57 * steps).all()
    assert (steps <= np.abs(weight).max(axis=1, keepdims=True) / 127 + 2.0**-24).all()
    for scheme in (Q4F16, Q6F16):
        searched = quantize(weight, scheme)
        assert (searched[1] != 0).all()
        assert np.abs(dequantize(*searched, scheme) - weight).max() <= max(size, 2.0**-25)


@pytest.mark.parametrize(("scheme", "levels"), [(Q4F16, 8), (Q6F16, 31), (Q8F16, 127)])
def test_scale_that_float16_cannot_hold_is_an_error(scheme: GroupScheme, levels: int) -> None:
    weight = random_matrix(4, 32)
    weight[2, 5] = 65520.0 * levels  # the smallest scale that rounds to infinity
    with pytest.raises(QuantizationError, match=r"`layers.0.x`: row 12 needs a scale"):
        quantize(weight, scheme, name="layers.0.x", first_row=10)
    weight[2, 5] = 65500.0 * levels
    assert np.isfinite(quantize(weight, scheme)[1]).all()
    assert dequantize(*quantize(weight, scheme), scheme)[2, 5] == pytest.approx(weight[2, 5], 1e-3)
    assert np.isfinite(quantize(weight * np.float32(1e10), GroupScheme(4, "float32"))[1]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weight_that_is_not_finite_is_an_error(value: float) -> None:
    weight = random_matrix(4, 32)
    weight[3, 1] = value
    with pytest.raises(QuantizationError, match="row 3 holds a weight that is not finite"):
        quantize(weight, Q4F16)
    with pytest.raises(QuantizationError, match="row 3 holds a weight that is not finite"):
        to_dense(weight, "float32")

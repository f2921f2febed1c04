"""Schemes: names, tensor shapes and sizes."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import QuantizationError
from gemma4_compile.quantization.scheme import DenseScheme, GroupScheme, StoredTensor


@pytest.mark.parametrize(
    ("scheme", "name", "zero_point", "values_per_word"),
    [
        (GroupScheme(4, "float16"), "q4f16_1", 7, 8),
        (GroupScheme(4, "float32"), "q4f32_1", 7, 8),
        (GroupScheme(8, "float16"), "q8f16_1", 127, 4),
    ],
)
def test_group_schemes(
    scheme: GroupScheme, name: str, zero_point: int, values_per_word: int
) -> None:
    assert scheme.name == name
    assert scheme.zero_point == zero_point
    assert scheme.values_per_word == values_per_word


def test_a_quantised_matrix_is_stored_as_words_and_scales() -> None:
    assert GroupScheme(4, "float16").tensors("o_proj", ".part1", (6, 64)) == (
        StoredTensor("o_proj.q_weight.part1", (6, 8), "uint32"),
        StoredTensor("o_proj.q_scale.part1", (6, 2), "float16"),
    )


def test_q4f16_takes_four_and_a_half_bits_a_weight() -> None:
    tensors = GroupScheme(4, "float16").tensors("w", "", (128, 1536))

    assert sum(tensor.nbytes for tensor in tensors) * 8 == 128 * 1536 * 4.5


def test_dense_schemes_keep_the_shape() -> None:
    assert DenseScheme("float16").name == "q0f16"
    (tensor,) = DenseScheme("float16").tensors("norm", "", (1536,))
    assert tensor == StoredTensor("norm.weight", (1536,), "float16")
    assert tensor.nbytes == 3072


@pytest.mark.parametrize("shape", [(4, 48), (4, 16), (64,)])
def test_groups_must_divide_the_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(QuantizationError, match=r"`w`.*groups of 32"):
        GroupScheme(4, "float16").tensors("w", "", shape)

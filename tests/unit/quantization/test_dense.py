"""Dense storage: names, tensor shapes and sizes."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.errors import QuantizationError
from gemma4_compile.quantization.dense import DenseScheme, to_dense
from gemma4_compile.quantization.scheme import StoredTensor


def test_dense_schemes_keep_the_shape() -> None:
    assert DenseScheme("float16").name == "q0f16"
    (tensor,) = DenseScheme("float16").tensors("norm", "", (1536,))
    assert tensor == StoredTensor("norm.weight", (1536,), "float16")
    assert tensor.nbytes == 3072


def test_dense_float16_rounds_to_nearest_even_and_refuses_overflow() -> None:
    values = np.array([1.0, 1 + 2**-11, 1 + 3 * 2**-11, 65519.0], np.float32)
    assert to_dense(values, "float16").tolist() == [1.0, 1.0, 1 + 2**-9, 65504.0]
    with pytest.raises(QuantizationError, match="row 1 holds a weight that float16 cannot hold"):
        to_dense(np.array([1.0, 65520.0], np.float32), "float16")

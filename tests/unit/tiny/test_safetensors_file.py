from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from gemma4_compile.tiny.safetensors_file import rounded, to_bfloat16, write_safetensors


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-0.0, 0x8000),
        (1.0 + 2**-8, 0x3F80),  # half way: to even
        (1.0 + 3 * 2**-8, 0x3F82),  # half way: to even
        (1.0 + 2**-8 + 2**-20, 0x3F81),
        (3.3e38, 0x7F78),
    ],
)
def test_bfloat16_is_the_nearest_with_ties_to_even(value: float, bits: int) -> None:
    assert to_bfloat16(np.array([value], np.float32)).tolist() == [bits]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_was_written_is_read_back(tmp_path: Path, dtype: str) -> None:
    values = np.linspace(-3, 3, 35, dtype=np.float32)
    tensors = {"b": values.reshape(5, 7), "a": values[:1]}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, tensors, dtype)
    with safe_open(path, framework="np") as file:
        assert list(file.offset_keys()) == ["b", "a"]
        for name, expected in tensors.items():
            assert file.get_slice(name).get_shape() == list(expected.shape)
            if dtype != "bfloat16":
                np.testing.assert_array_equal(
                    file.get_tensor(name).astype(np.float32), rounded(expected, dtype)
                )
    raw = path.read_bytes()[-len(values) * 2 - 2 :]
    if dtype == "bfloat16":
        assert raw[:-2] == to_bfloat16(tensors["b"]).tobytes()

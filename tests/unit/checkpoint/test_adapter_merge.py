from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint import adapter_merge
from gemma4_compile.checkpoint.adapter_merge import Factor, Merged, Update
from gemma4_compile.checkpoint.safetensors_file import read_header
from gemma4_compile.tiny.safetensors_file import write_safetensors


@pytest.mark.parametrize("floats", [1, 7, 1 << 22])
@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_blocks_of_any_size_make_the_same(
    floats: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    w, a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((6, 5), (4, 6), (5, 8)))
    write_safetensors(tmp_path / "x.safetensors", {"w": w, "a": a, "b": b}, "float32")
    tensors = read_header(tmp_path / "x.safetensors")
    monkeypatch.setattr(adapter_merge, "_BLOCK_FLOATS", floats)
    monkeypatch.setattr(adapter_merge, "_KEPT_BYTES", kept)
    left = Factor(tensors["a"], is_transposed=True)
    right = Factor(tensors["b"], 1, 2, is_transposed=True)
    merged = Merged(tensors["w"], (Update(left, right, 0.5),))
    expected = w + 0.5 * a.T.astype(np.float64) @ b[:, 1::2].T
    for begin, end in ((0, 6), (2, 3), (1, 5)):
        np.testing.assert_allclose(merged.read_rows(begin, end), expected[begin:end], rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_weight_beyond_float32_is_infinite_without_a_word(tmp_path: Path) -> None:
    """It is told of where weights are stored."""
    large = np.full((1, 1), 1e30, np.float32)
    write_safetensors(tmp_path / "x.safetensors", {"w": large, "a": large, "b": large}, "float32")
    tensors = read_header(tmp_path / "x.safetensors")
    merged = Merged(tensors["w"], (Update(Factor(tensors["b"]), Factor(tensors["a"]), 1.0),))
    assert np.isinf(merged.read_rows(0, 1)).all()

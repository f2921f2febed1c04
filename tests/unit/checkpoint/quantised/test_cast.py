"""Weights cast to 8-bit floats without a config, as transformers widens them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gemma4_compile import tiny
from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.quantised import cast
from gemma4_compile.checkpoint.safetensors_file import read_header, read_rows
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
Q_PROJ = "model.language_model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_is_the_number_that_torch_has(dtype: torch.dtype, tmp_path: Path) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)
    save_file({"x": codes}, tmp_path / "x.safetensors")
    weights = cast.read_weights(read_header(tmp_path / "x.safetensors"))
    assert weights is not None
    found = read_rows(weights.tensors["x"], 0, 16)
    np.testing.assert_array_equal(found, codes.float().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checkpoint_is_read_with_a_warning(
    dtype: torch.dtype, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.materialize(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    stored = {name: one.to(dtype) if one.ndim == 2 else one for name, one in stored.items()}
    save_file(stored, file, {"format": "pt"})
    with open_source(str(tmp_path), None, weights=True) as source:
        assert source.checkpoint is not None
        matched = match(source.checkpoint.tensors, source.config)
        rows = row_reader(matched)("layers.0.self_attn.q_proj.weight", 3, 9)
    np.testing.assert_array_equal(rows, stored[Q_PROJ][3:9].float().numpy())
    assert "8-bit floats" in capsys.readouterr().err


def test_codes_with_scales_are_refused_without_a_config(tmp_path: Path) -> None:
    tiny.materialize(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    stored[Q_PROJ] = stored[Q_PROJ].to(DTYPES[0])
    stored[f"{Q_PROJ}_scale"] = torch.ones(1)
    save_file(stored, file, {"format": "pt"})
    with open_source(str(tmp_path), None, weights=True) as source:
        assert source.checkpoint is not None
        with pytest.raises(CheckpointError, match=r"F8_E4M3|quantised checkpoint") as raised:
            match(source.checkpoint.tensors, source.config)
    assert "quantization_config" in str(raised.value.hint)

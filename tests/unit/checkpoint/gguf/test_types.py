"""Storage types of GGUF: their numbers, and which are refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from gemma4_compile.checkpoint.gguf.model import open_model
from gemma4_compile.checkpoint.gguf.names import TARGET, usual_name
from gemma4_compile.checkpoint.match import row_reader
from gemma4_compile.errors import CheckpointError
from gemma4_compile.quantization.schemes import SCHEMES
from tests import models
from tests.gguf_files import Type, all_of, made, of_type

WIDE = {**models.E2B_LIKE, "hidden_size": 256, "hidden_size_per_layer_input": 256}


def test_values_of_q4_0_are_levels_times_the_scale(tmp_path: Path) -> None:
    """By the format: a float16, then the low halves of sixteen bytes, then the high ones."""
    _, path = made(tmp_path, models.E4B_LIKE, all_of(Type.Q4_0))
    one = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_q.weight")
    block = bytes(one.data[1][:18])
    scale = np.frombuffer(block[:2], "<f2")[0]
    levels = [byte & 15 for byte in block[2:]] + [byte >> 4 for byte in block[2:]]
    found = row_reader(open_model(path, TARGET).tensors)(
        "model.layers.0.self_attn.q_proj.weight", 1, 2
    )[0, :32]
    assert found.tolist() == [float(np.float32(scale) * (level - 8)) for level in levels]


REFUSED = (
    *("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_S"),
    *("TQ1_0", "MXFP4", "I8", "F64"),
)


@pytest.mark.parametrize("kind", REFUSED)
def test_other_types_are_refused_by_name_with_what_works(kind: str, tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"
    _, path = made(tmp_path, WIDE, all_of(Type.F16), change=of_type(kind, name), without=(name,))
    with pytest.raises(CheckpointError, match=rf"`{name}` in `model.gguf` has type {kind}, ") as e:
        open_model(path, TARGET)
    assert all(word in str(e.value.hint) for word in ("Q4_0", "Q8_0", "BF16", "safetensors"))


def test_tables_of_q6_k_are_read_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in Google's files of Q4_0, and in those of llama.cpp."""

    def choose(name: str, shape: tuple[int, ...]) -> Type:
        return Type.F32 if name in tables else all_of(Type.Q4_0)(name, shape)

    tables = ("token_embd.weight", "per_layer_token_embd.weight")
    draw = np.random.default_rng(1)
    blocks = {}

    def add(writer: gguf.GGUFWriter) -> None:
        for name, columns in zip(tables, (256, 256 * 7), strict=True):
            stored = draw.integers(0, 256, (256, columns // 256, 210), np.uint8)
            stored[..., -2:] = np.array([0.01], "<f2").view(np.uint8)
            blocks[name] = stored.reshape(256, -1)
            writer.add_tensor(name, blocks[name], raw_dtype=Type.Q6_K)

    _, path = made(tmp_path, WIDE, choose, change=add, without=tables)
    opened = open_model(path, TARGET)
    error = capsys.readouterr().err
    assert "`token_embd.weight` has type Q6_K and `per_layer_token_embd.weight` has type" in error
    read = row_reader(opened.tensors)
    for name, stored in blocks.items():
        expected = gguf.quants.dequantize(stored, Type.Q6_K)
        assert np.array_equal(read(str(usual_name(name)), 0, 256), expected)


@pytest.mark.parametrize("recipe", ["q4f16_1", "q4f32_1"])
def test_levels_of_q4_0_are_stored_as_they_are(recipe: str, tmp_path: Path) -> None:
    """Bit for bit: other order of the halves of bytes, the same scale in the same float16."""
    draw = np.random.default_rng(3)
    rows, groups = 128, 3
    levels = draw.integers(0, 16, (rows, groups, 32), np.uint8)  # 8 is zero
    levels[7] = 8
    scales = draw.uniform(1e-4, 0.1, (rows, groups)) * draw.choice([-1, 1], (rows, groups))
    halves = levels[..., :16] | levels[..., 16:] << 4
    blocks = np.concatenate([scales.astype("<f2")[..., None].view(np.uint8), halves], axis=-1)
    name = "blk.0.ffn_gate.weight"

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=Type.Q4_0)

    _, path = made(tmp_path, models.E2B_LIKE, all_of(Type.Q4_0), change=add, without=(name,))
    weights = row_reader(open_model(path, TARGET).tensors)(str(usual_name(name)), 0, rows)
    expected = scales.astype(np.float16).astype(np.float32)[..., None] * (levels.astype(int) - 8)
    assert np.array_equal(weights, expected.reshape(rows, -1).astype(np.float32))
    scheme = SCHEMES[recipe]
    stored = scheme.load(scheme.store(weights, name=name, first_row=0))
    assert np.array_equal(stored, weights)


def test_q8_0_is_stored_as_it_is_in_8_bits(tmp_path: Path) -> None:
    """Its rule is the recipe's: the largest of 32 weights is 127 steps."""
    _, path = made(tmp_path, models.E2B_LIKE, all_of(Type.Q8_0))
    opened = open_model(path, TARGET)
    scheme, read = SCHEMES["q8f16_1"], row_reader(opened.tensors)
    for name, tensor in opened.tensors.items():
        if tensor.decoder is not None:
            weights = read(name, 0, tensor.row_count)
            stored = scheme.load(scheme.store(weights, name=name, first_row=0))
            assert np.array_equal(stored, weights), name

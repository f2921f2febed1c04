"""Models in GGUF next to the same weights in safetensors, and what is refused of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.peer.write_gguf import write_gguf as write_made_up
from gemma4_compile.checkpoint.gguf.model import open_model
from gemma4_compile.checkpoint.gguf.names import TARGET, usual_name
from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.safetensors_file import check_unchanged
from gemma4_compile.checkpoint.sources import ModelSource, open_source
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.tiny.architecture import HEAD, tensor_shapes
from tests import models
from tests.gguf_files import Type, all_of, gguf_name, made, of_name, write_gguf

Float32Array = models.Float32Array


def weights_of(source: ModelSource) -> dict[str, Float32Array]:
    assert source.checkpoint is not None
    matched = match(source.checkpoint.tensors, source.config)
    read = row_reader(matched)
    return {name: read(name, 0, tensor.row_count) for name, tensor in matched.items()}


@pytest.mark.parametrize("kind", [kind for kind in models.ALL if "3n" not in kind])
def test_config_and_weights_are_those_of_the_safetensors_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    checkpoint, path = made(tmp_path, models.ALL[kind], all_of(Type.F32))
    folder = tmp_path / "checkpoint"
    models.write_checkpoint(folder, models.ALL[kind], weights=checkpoint.weights)
    with (
        open_source(str(folder), None, weights=True) as expected,
        open_source(str(path), None, weights=True) as found,
    ):
        same = replace(
            *(expected.config,),
            eos_token_id=(1,),
            bidirectional_images=False,
        )
        if "heads" in kind:  # a share that is no whole number of pairs is another number there
            same = replace(same, full_rope=found.config.full_rope)
        assert found.config == same
        given, stored = weights_of(expected), weights_of(found)
    assert given.keys() == stored.keys()
    for name, values in given.items():
        assert np.array_equal(values, stored[name]), name


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_values_show_the_dtype_that_a_file_does_not_say(
    dtype: str, kind: str, tmp_path: Path
) -> None:
    weights = models.random_weights(models.E4B_LIKE, dtype=dtype)
    checkpoint = models.Checkpoint(tmp_path, models.E4B_LIKE, weights, dtype)
    path = write_gguf(tmp_path / "model.gguf", checkpoint, all_of(of_name(kind)))
    assert open_model(path, TARGET).config["dtype"] == dtype


def test_a_table_shows_the_dtype_where_norms_are_ones(tmp_path: Path) -> None:
    weights = {
        name: np.ones_like(value) if name.endswith("norm.weight") else value
        for name, value in models.random_weights(models.E4B_LIKE).items()
    }
    checkpoint = models.Checkpoint(tmp_path, models.E4B_LIKE, weights, "float32")
    path = write_gguf(tmp_path / "model.gguf", checkpoint, all_of(Type.F32))
    assert open_model(path, TARGET).config["dtype"] == "float32"


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("model", ["e2b", "moe"])
def test_every_type_is_read_as_the_package_reads_it(kind: str, model: str, tmp_path: Path) -> None:
    _, path = made(tmp_path, models.KINDS[model], all_of(of_name(kind)))
    expected = {
        name: gguf.quants.dequantize(one.data, one.tensor_type).reshape(-1)
        for one in gguf.GGUFReader(path).tensors
        if (name := usual_name(one.name))
    }
    opened = open_model(path, TARGET)
    assert opened.tensors.keys() == expected.keys()
    read = row_reader(opened.tensors)
    for name, tensor in opened.tensors.items():
        rows = read(name, 0, tensor.row_count)
        assert np.array_equal(rows.reshape(-1), expected[name]), name
        middle = tensor.row_count // 3
        assert np.array_equal(rows[middle:], read(name, middle, tensor.row_count)), name
    check_unchanged(opened.tensors.values())
    path.touch()
    with pytest.raises(CheckpointError, match="changed while in use"):
        check_unchanged(opened.tensors.values())


def test_experts_whose_halves_lie_apart(tmp_path: Path) -> None:
    checkpoint, _ = made(tmp_path, models.MOE_LIKE, all_of(Type.F32))
    width = models.MOE_LIKE["moe_intermediate_size"]
    stacks = {
        name.split(".")[1]: value
        for name, value in checkpoint.weights.items()
        if name.endswith("gate_up_proj") and "experts" in name
    }

    def apart(writer: gguf.GGUFWriter) -> None:
        for index, stack in stacks.items():
            for half, rows in (("gate", stack[:, :width]), ("up", stack[:, width:])):
                values = gguf.quants.quantize(np.ascontiguousarray(rows), Type.Q8_0)
                name = f"blk.{index}.ffn_{half}_exps.weight"
                writer.add_tensor(name, values, raw_dtype=Type.Q8_0)

    left_out = tuple(f"blk.{index}.ffn_gate_up_exps.weight" for index in stacks)
    whole = write_gguf(tmp_path / "whole.gguf", checkpoint, all_of(Type.Q8_0))
    halves = write_gguf(
        tmp_path / "halves.gguf", checkpoint, all_of(Type.Q8_0), change=apart, without=left_out
    )
    with (
        open_source(str(whole), None, weights=True) as one,
        open_source(str(halves), None, weights=True) as other,
    ):
        assert one.config == other.config
        given, stored = weights_of(one), weights_of(other)
    for name, values in given.items():
        assert np.array_equal(values, stored[name]), name


@pytest.mark.parametrize("preset", [name for name in preset_names() if "3n" not in name])
def test_names_and_metadata_that_llama_cpp_has_loaded(preset: str, tmp_path: Path) -> None:
    """The benchmark's writer knows nothing of the reader, and its files run in llama.cpp."""
    config = Gemma4Config.from_preset(preset)
    kept = next(i for i, kind in enumerate(config.layer_types) if kind.value == models.FULL) + 1
    config = replace(
        config,
        num_hidden_layers=kept,
        num_kv_shared_layers=0,
        use_double_wide_mlp=False,
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        layer_types=config.layer_types[:kept],
        num_key_value_heads=config.num_key_value_heads[:kept],
        head_dim=config.head_dim[:kept],
        vocab_size_per_layer_input=64 if config.hidden_size_per_layer_input else 0,
        num_experts=min(4, config.num_experts),
        top_k_experts=min(2, config.top_k_experts),
        moe_intermediate_size=min(32, config.moe_intermediate_size),
    )
    write_made_up(tmp_path / "model.gguf", config, preset)
    with open_source(str(tmp_path / "model.gguf"), None, weights=True) as found:
        assert found.config == replace(
            config, bidirectional_images=False, eos_token_id=(1,), vision=None, audio=None
        )
        assert found.checkpoint is not None
        matched = match(found.checkpoint.tensors, found.config)
    assert len(matched) == sum(len(p.sources) for p in parameter_table(config))


def test_the_package_knows_the_names_as_well() -> None:
    names = {name for text in models.UNTIED.values() for name in tensor_shapes(text)}
    assert len(names) > 150
    for name in names:
        full = name if name == HEAD else f"model.{name}"
        assert usual_name(gguf_name(name, 8)) == full


@pytest.mark.parametrize("name", ["rope_freqs.weight", "token_embd.weight", "blk.3.ffn_up.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    checkpoint, _ = made(tmp_path, models.E2B_LIKE, all_of(Type.F32))
    path = write_gguf(tmp_path / "cut.gguf", checkpoint, all_of(Type.F32), without=(name,))
    usual = usual_name(name) or name
    with (
        pytest.raises(CheckpointError, match=f"({name}|{usual})` is missing"),
        open_source(str(path), None, weights=True) as source,
    ):
        weights_of(source)


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("v.blk.0.attn_q.weight", np.ones((32, 32), np.float32))
        writer.add_uint32("gemma4.attention.sinks", 4)

    _, path = made(tmp_path, models.E2B_LIKE, all_of(Type.F32), change=change)
    open_model(path, TARGET)
    error = capsys.readouterr().err
    assert "`v.blk.0.attn_q.weight`: they are left out" in error
    assert "`gemma4.attention.sinks`" in error

"""Buffers and heads for other tasks beside the weights of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from gemma4_compile.checkpoint.adapter_source import open_adapters
from gemma4_compile.checkpoint.leftovers import without_leftovers
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, read_header, read_rows
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests.models import E2B_LIKE

WEIGHTS = (
    "model.language_model.layers.0.layer_scalar",
    "model.language_model.layers.0.self_attn.q_norm.weight",
    "model.vision_tower.std_scale",
    "model.audio_tower.layers.0.self_attn.per_dim_scale",
    "lm_head.weight",
    "masked_embedding.centroids.weight",
)
BUFFERS = (
    "model.language_model.rotary_emb.inv_freq",
    "model.language_model.rotary_emb.full_attention_original_inv_freq",
    "layers.0.self_attn.rotary_emb.inv_freq",
    "model.rotary_emb_local.inv_freq",
    "model.audio_tower.rel_pos_enc.inv_timescales",
    "model.vision_tower.embeddings.position_ids",
)
HEADS = ("v_head.summary.weight", "score.weight", "model.score.weight", "mtp.layers.0.norm.weight")


@pytest.fixture
def tensor(tmp_path: Path) -> TensorInfo:
    write_safetensors(tmp_path / "x.safetensors", {"x": np.ones((2, 3), np.float32)}, "float32")
    return read_header(tmp_path / "x.safetensors")["x"]


def test_buffers_are_left_out_in_silence(
    tensor: TensorInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    given = dict.fromkeys((*WEIGHTS, *BUFFERS), tensor)
    assert tuple(without_leftovers(given)) == WEIGHTS
    assert not capsys.readouterr().err


def test_heads_for_other_tasks_are_named(
    tensor: TensorInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    given = dict.fromkeys((*WEIGHTS, *HEADS), tensor)
    assert tuple(without_leftovers(given)) == WEIGHTS
    assert "`model.score.weight` (4 in all)" in capsys.readouterr().err


def test_what_transformers_computes_is_no_weight_and_what_it_saves_is(tensor: TensorInfo) -> None:
    kind: Any = Gemma4ForCausalLM
    with torch.device("meta"):
        model = kind._from_config(Gemma4TextConfig(**E2B_LIKE))
    saved, computed = model.state_dict().keys(), {name for name, _ in model.named_buffers()}
    assert computed - saved
    given = dict.fromkeys([*saved, *(computed - saved)], tensor)
    assert without_leftovers(given).keys() == saved


def test_weights_of_64_bits_are_rounded_to_32(tmp_path: Path) -> None:
    values = np.array([[1 / 3, 1e-300], [-2.5, 1e9 + 0.1]])
    header = b'{"x":{"dtype":"F64","shape":[2,2],"data_offsets":[0,32]}}'
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
    rows = read_rows(read_header(file)["x"], 0, 2)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, values.astype(np.float32))


@pytest.mark.parametrize(
    "head", ["v_head.summary.weight", "base_model.model.score.modules_to_save.weight"]
)
def test_an_adapters_head_for_another_task_is_left_out(
    head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a reward or value model; PEFT leaves it out of a model of replies, too."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1}))
    rows = np.ones((1, 1), np.float32)
    names = [f"base_model.model.{name}.weight" for name in ("q.lora_A", "q.lora_B")]
    tensors = dict.fromkeys((*names, head), rows)
    write_safetensors(tmp_path / "adapter_model.safetensors", tensors, "float32")
    (opened,) = open_adapters([str(tmp_path)], weights=True, base=None)
    assert opened.tensors is not None
    assert not opened.tensors.whole
    assert f"`{head}` (1 in all) is of a head" in capsys.readouterr().err

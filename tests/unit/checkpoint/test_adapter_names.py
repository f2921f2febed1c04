from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.checkpoint.adapter_names import check_is_pefts, sort_tensors
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.errors import CheckpointError


def test_names_are_told_apart() -> None:
    names = (
        "base_model.model.m.q.lora_A.weight",
        "base_model.model.m.experts.base_layer.lora_B.default.weight",
        "base_model.model.lm_head.modules_to_save.default.weight",
        "base_model.model.m.e.base_layer.weight",
        "base_model.model.m.e.token_adapter.trainable_tokens_delta",
        "base_model.model.lm_head.original_module.weight",
    )
    tensors = {name: TensorInfo(name, "F32", (1, 1), Path("x"), 0, 4) for name in names}
    found = sort_tensors(tensors)
    assert [one.module for one in found.factors.values()] == ["m.q", "m.experts"]
    assert {name: one.is_copy for name, one in found.whole.items()} == {
        "lm_head.weight": True,
        "m.e.weight": False,
    }
    assert list(found.rows) == ["m.e"]


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("lora_te_model_layers_0_self_attn_q_proj.lora_down.weight", "kohya's"),
        ("layers.0.self_attn.q_proj.lora.up.weight", "diffusers"),
        ("language_model.model.layers.0.self_attn.q_proj.lora_a", "MLX"),
        ("layers.0.attn.q_proj.lora_b.weight", "torchtune"),
        ("layers.0.self_attention.linear_qkv.adapter.linear_in.weight", "NeMo"),
    ],
)
def test_names_of_other_programs_are_called_that(name: str, who: str) -> None:
    with pytest.raises(CheckpointError, match=who) as caught:
        check_is_pefts(["m.q.lora_A.weight", name])
    assert caught.value.hint
    check_is_pefts(["m.q.lora_A.weight", "m.q.lora_embedding_B", "m.q.lora_A.alpha"])

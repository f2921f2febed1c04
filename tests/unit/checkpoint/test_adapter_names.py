from __future__ import annotations

from pathlib import Path

from gemma4_compile.checkpoint.adapter_names import sort_tensors
from gemma4_compile.checkpoint.safetensors_file import TensorInfo


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

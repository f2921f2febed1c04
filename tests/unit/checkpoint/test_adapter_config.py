from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4_compile.checkpoint.adapter_config import read_adapter_config
from gemma4_compile.errors import CheckpointError


@pytest.mark.parametrize(("method", "is_merged"), [("LOHA", True), ("PREFIX_TUNING", False)])
def test_only_what_peft_can_merge_is_to_be_merged(
    method: str, is_merged: bool, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": method}))
    with pytest.raises(CheckpointError, match=method) as raised:
        read_adapter_config(tmp_path)
    assert ("merge_and_unload" in (raised.value.hint or "")) is is_merged


@pytest.mark.parametrize(
    "values",
    [{"fine_tune_type": "dora"}, {"lora_parameters": {"rank": 8}}, {"lora_layers": 16}],
)
def test_mlxs_are_called_that(values: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="an adapter of MLX") as raised:
        read_adapter_config(tmp_path)
    assert "mlx_lm.fuse" in str(raised.value.hint)


Q_PROJ = "model.language_model.layers.0.self_attn.q_proj"


def write(folder: Path, **values: object) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **values}))
    return folder


@pytest.mark.parametrize("name", ["target_modules", "exclude_modules"])
def test_a_pattern_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"`{name}` .* '\*\.q_proj', which is no regular"):
        read_adapter_config(write(tmp_path, **{name: "*.q_proj"}))


@pytest.mark.parametrize(
    ("more", "is_target"),
    [
        ({"target_modules": r".*\.q_proj"}, True),
        ({"target_modules": "q_proj"}, False),  # of whole names
        ({"target_modules": r".*\.k_proj"}, False),
        ({"target_modules": "all-linear"}, True),
        ({"target_modules": "All-Linear"}, True),
        ({"target_modules": "k_proj", "target_parameters": ["experts.down_proj"]}, True),
        ({"target_modules": r"(?:.*?(?:language).*?(?:attn).*?(?:q_proj).*?)"}, True),
        ({"target_modules": r"(?:.*?(?:language).*?(?:attn).*?(?:k_proj).*?)"}, False),
    ],
)
def test_a_pattern_of_targets_holds_as_in_peft(
    more: dict[str, object], is_target: bool, tmp_path: Path
) -> None:
    assert read_adapter_config(write(tmp_path, **more)).is_target(Q_PROJ) is is_target

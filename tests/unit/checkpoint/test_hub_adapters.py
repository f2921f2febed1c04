from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from gemma4_compile.checkpoint import hub
from gemma4_compile.checkpoint.adapter_source import open_adapters
from gemma4_compile.errors import CheckpointError
from tests import fake_hub


def test_an_adapter_is_fetched_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / fake_hub.COMMIT
    root.mkdir()
    there = {"adapter_config.json", "adapter_model.safetensors"}
    asked = []

    def download(model: str, file: str, revision: str | None = None, **_: object) -> str:
        asked.append((file, revision))
        if file not in there:
            raise fake_hub.bare(hub_errors.RemoteEntryNotFoundError)
        (root / file).write_text("{}")
        return str(root / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "ask", lambda *_, **__: (None, None))
    monkeypatch.setattr(hub, "cached", lambda *_, **__: None)
    assert hub.fetch_adapter("me/adapter", "v1", weights=False) == root
    assert asked == [("adapter_config.json", "v1")]
    assert hub.fetch_adapter("me/adapter", None, weights=True) == root
    assert ("adapter_model.safetensors", fake_hub.COMMIT) in asked
    there.remove("adapter_model.safetensors")
    fake_hub.serve(monkeypatch, {"adapter_config.json": 1, "adapter_model.bin": 1})
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin"):
        hub.fetch_adapter("me/adapter", None, weights=True)


@pytest.mark.parametrize(
    "config", [{"peft_type": "IA3"}, {"peft_type": "LORA", "target_modules": "*.q_proj"}]
)
def test_what_a_config_rules_out_is_not_downloaded(
    config: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / fake_hub.COMMIT
    root.mkdir()
    (root / "adapter_config.json").write_text(json.dumps(config))
    asked = []

    def download(model: str, file: str, **_: object) -> str:
        asked.append(file)
        return str(root / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "ask", lambda *_, **__: (None, None))
    monkeypatch.setattr(hub, "cached", lambda *_, **__: None)
    with pytest.raises(CheckpointError, match="--adapter me/adapter"):
        open_adapters(["me/adapter"], weights=True, base=None)
    assert asked == ["adapter_config.json"]

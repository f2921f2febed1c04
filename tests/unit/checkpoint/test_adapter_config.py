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

"""A config without a dtype: the one that transformers loads in, to which constants are rounded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint.drafter import open_drafter
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.scales import embedding_scale
from gemma4_compile.tiny import materialize, materialize_drafter
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests.models import E2B_LIKE, Form, random_weights, tensor_name, write_checkpoint

TEXT = {**E2B_LIKE, "hidden_size": 48}  # whose root no dtype holds
WEIGHTS = random_weights(TEXT)


def change_config(path: Path, fields: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """`config.json` without a dtype of its top level, but for what is given."""
    values: dict[str, Any] = json.loads((path / "config.json").read_text())
    values.pop("dtype")
    values.update(fields)
    (path / "config.json").write_text(json.dumps(values))
    return values


def without_dtype(
    path: Path, form: Form, dtype: str, fields: Mapping[str, Any] = MappingProxyType({})
) -> Path:
    write_checkpoint(path, TEXT, form=form, dtype=dtype, weights=WEIGHTS)
    values = change_config(path, fields)
    if form == "hub":
        assert values["text_config"]["dtype"] == dtype
        values["text_config"]["dtype"] = "float16" if dtype != "float16" else "float32"
        (path / "config.json").write_text(json.dumps(values))
    return path


def shard(path: Path, metadata: dict[str, Any]) -> None:
    """Cut the weights: the last half by name, in float32, lies in the first file by name."""
    names = sorted(WEIGHTS)
    half = len(names) // 2
    parts = {
        "b.safetensors": (names[:half], "bfloat16"),
        "a.safetensors": (names[half:], "float32"),
    }
    weight_map = {}
    for file, (held, dtype) in parts.items():
        tensors = {tensor_name(name): WEIGHTS[name] for name in held}
        write_safetensors(path / file, tensors, dtype)
        weight_map.update(dict.fromkeys(tensors, file))
    (path / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 0, **metadata}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def read(path: Path, *, weights: bool = True) -> Gemma4Config:
    with open_source(str(path), None, weights=weights) as source:
        return source.config


def assert_as_transformers(path: Path, dtype: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype == getattr(torch, dtype)
    table = model.get_input_embeddings()
    expected = float(table.embed_scale.to(table.weight.dtype))
    for weights in (True, False):
        config = read(path, weights=weights)
        assert config.dtype == dtype
        assert np.float32(embedding_scale(config)) == np.float32(expected)


@pytest.mark.parametrize("given", [{}, {"dtype": None}, {"torch_dtype": None}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("form", ["hub", "transformers"])
def test_it_is_the_weights(form: Form, dtype: str, given: dict[str, Any], tmp_path: Path) -> None:
    assert_as_transformers(without_dtype(tmp_path / "model", form, dtype, given), dtype)


@pytest.mark.parametrize(
    ("metadata", "dtype"), [({}, "float32"), ({"dtype": "float16"}, "float16")]
)
def test_of_shards_it_is_the_index_or_the_first_file(
    metadata: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    path = without_dtype(tmp_path / "model", "hub", "bfloat16")
    shard(path, metadata)
    assert_as_transformers(path, dtype)


def test_the_config_has_the_first_word(tmp_path: Path) -> None:
    path = without_dtype(tmp_path / "model", "hub", "float32", {"torch_dtype": "float16"})
    assert_as_transformers(path, "float16")


def test_without_weights_it_is_that_of_the_released_ones_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without_dtype(tmp_path / "model", "hub", "float32")
    read(path, weights=False)
    assert capsys.readouterr().err == ""
    (path / "model.safetensors").unlink()
    assert read(path, weights=False).dtype == "bfloat16"
    assert "warning: config.json names no `dtype`" in capsys.readouterr().err


def test_a_drafter_has_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    materialize(tmp_path / "target")
    materialize_drafter(tmp_path / "drafter")
    change_config(tmp_path / "drafter")
    target = read(tmp_path / "target")
    with open_drafter(str(tmp_path / "drafter"), target, weights=True) as drafter:
        assert drafter is not None
        assert drafter.config.dtype == "bfloat16"
    assert capsys.readouterr().err == ""
    (tmp_path / "drafter" / "model.safetensors").unlink()
    with open_drafter(str(tmp_path / "drafter"), target, weights=False) as drafter:
        assert drafter is not None
    assert "--drafter: config.json names no `dtype`" in capsys.readouterr().err

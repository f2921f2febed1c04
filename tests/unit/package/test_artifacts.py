"""The package's JSON files: round trips, digests as the client computes them, damage refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import (
    ChatConfig,
    Provenance,
    Shard,
    TensorCache,
    TensorRecord,
    canonical_json,
    parameter_schema_id,
    read_artifact,
)

TENSORS = (TensorRecord("a", (4, 8), "uint32", 0), TensorRecord("b", (4, 2), "float16", 128))
CHAT = ChatConfig(
    model_type="gemma4",
    quantization="q4f16_1",
    vocab_size=256,
    context_window_size=64,
    prefill_chunk_size=16,
    tokenizer_files=("tokenizer.json",),
    conversation={"conv_template": {"name": "gemma4"}, "temperature": 1.0, "eos_token_id": [1]},
)
CACHE = TensorCache((Shard("params_shard_0.bin", 144, "0" * 32, TENSORS),), parameter_count=64)
PROVENANCE = Provenance("model.so", {"recipe": "q4f16"}, {"model.so": (3, "ab" * 32)})


def through_text(values: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(values))
    return parsed


def test_round_trips() -> None:
    assert ChatConfig.from_json(through_text(CHAT.to_json())) == CHAT
    assert TensorCache.from_json(through_text(CACHE.to_json())) == CACHE
    made = Provenance.from_json(through_text(PROVENANCE.to_json()))
    assert (made.library, made.build, made.files) == (
        "model.so",
        PROVENANCE.build,
        PROVENANCE.files,
    )
    assert Provenance.from_json(through_text(made.to_json())) == made


def test_canonical_json_spells_characters_as_the_client_does() -> None:
    assert canonical_json({"b": "ä", "a": [1, None]}) == '{"a":[1,null],"b":"ä"}'


def test_schema_id_depends_on_name_shape_dtype_and_order() -> None:
    ids = {
        parameter_schema_id(tensors)
        for tensors in (
            TENSORS,
            TENSORS[::-1],
            (TENSORS[0],),
            (TensorRecord("a", (8, 4), "uint32", 0), TENSORS[1]),
            (TensorRecord("a", (4, 8), "float32", 0), TENSORS[1]),
        )
    }
    assert len(ids) == 5


def test_chat_config_has_exactly_one_window() -> None:
    values = CHAT.to_json()
    assert (values["context_window_size"], values["sliding_window_size"]) == (64, -1)


@pytest.mark.parametrize("field", ["vocab_size", "context_window_size", "prefill_chunk_size"])
@pytest.mark.parametrize("value", [0, -1, "64", None, 1.5, True])
def test_damaged_chat_config(field: str, value: object) -> None:
    with pytest.raises(ArtifactError, match=field):
        ChatConfig.from_json({**CHAT.to_json(), field: value})


@pytest.mark.parametrize("files", [["../x"], ["/etc/passwd"], [3], "tokenizer.json"])
def test_chat_config_names_files_without_folders_only(files: object) -> None:
    with pytest.raises(ArtifactError, match="tokenizer_files"):
        ChatConfig.from_json({**CHAT.to_json(), "tokenizer_files": files})


CACHE_DAMAGE: list[tuple[str, object]] = [
    ("dataPath", "../params.bin"),
    ("dataPath", 3),
    ("nbytes", 100),
    ("nbytes", -1),
    ("records", None),
    ("records", [3]),
]
RECORD_DAMAGE: list[tuple[str, object]] = [
    ("name", None),
    ("shape", [-4, 8]),
    ("shape", [4.0, 8]),
    ("shape", [2**40, 8]),
    ("dtype", "int4"),
    ("format", "f32-to-bf16"),
    ("byteOffset", -4),
    ("byteOffset", 100),
    ("nbytes", 64),
    ("name", "b"),
]


@pytest.mark.parametrize(("field", "value"), CACHE_DAMAGE)
def test_damaged_shard(field: str, value: object) -> None:
    values = copy.deepcopy(CACHE.to_json())
    values["records"][0][field] = value
    with pytest.raises(ArtifactError, match="tensor-cache"):
        TensorCache.from_json(values)


@pytest.mark.parametrize(("field", "value"), RECORD_DAMAGE)
def test_damaged_record(field: str, value: object) -> None:
    values = copy.deepcopy(CACHE.to_json())
    values["records"][0]["records"][0][field] = value
    with pytest.raises(ArtifactError, match="tensor-cache"):
        TensorCache.from_json(values)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"schema_version": 2},
        {"files": {"../x": {"nbytes": 1, "sha256": ""}}},
        {"files": {"x": 3}},
        {"files": {name: {"nbytes": 1, "sha256": ""} for name in ("model.so", "Model.so")}},
        {"files": {"aux.bin": {"nbytes": 1, "sha256": ""}}},
        {"library": "not-in-files"},
        {"build": None},
    ],
)
def test_damaged_provenance(change: dict[str, object]) -> None:
    with pytest.raises(ArtifactError):
        Provenance.from_json({**PROVENANCE.to_json(), **change})


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ArtifactError, match=r"x\.json` is damaged"):
        read_artifact(tmp_path / "x.json")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"`x\.json` is missing"):
        read_artifact(tmp_path / "x.json")

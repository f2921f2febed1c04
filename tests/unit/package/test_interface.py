"""The manifest and the library's metadata, as the client checks them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.settings import (
    AudioSettings,
    ImageSettings,
    MediaSettings,
    media_settings,
)
from gemma4_compile.media.sizes import SHAPES, client_blocks
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import UnifiedVisionConfig
from gemma4_compile.model_spec.vision.picture import ClientPicture
from gemma4_compile.package.artifacts import TensorRecord, canonical_json, parameter_schema_id
from gemma4_compile.package.interface import (
    TASK,
    TEXT_ONLY,
    RowTable,
    TableSplit,
    interface_id,
    library_metadata,
    manifest_json,
    row_table,
    tasks,
)

TENSORS = (TensorRecord("a", (4, 8), "uint32", 0), TensorRecord("b", (4, 2), "float16", 128))
BOTH = MediaSettings(ImageSettings(10, 11, 12, 13), AudioSettings(20, 21, 22, 640, 160), True)


def test_interface_id_is_the_hash_of_canonical_tasks() -> None:
    text = (
        '{"tasks":{"chat.completions":{"executor":"text","inputs":{"text":'
        '{"processor":"tokenizer"}},"output":"text"}}}'
    )
    assert canonical_json({"tasks": tasks()}) == text
    assert interface_id(tasks()) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


TABLE = RowTable(3, (TableSplit(4, ("a",)), TableSplit(5, ("b",))))


def test_metadata_describe_the_table_of_rows() -> None:
    metadata = library_metadata(
        model_type="gemma4",
        quantization="q4f16_1",
        context_length=64,
        prefill_chunk=16,
        tensors=TENSORS,
        required_features=(),
        largest_binding_bytes=128,
        device_memory_bytes=1000,
        table=TABLE,
    )
    assert row_table(json.loads(json.dumps(metadata))) == TABLE
    assert row_table({}) is None
    assert [TABLE.window_rows(most) for most in (3, 4, 5, 6)] == [3, 6, 6, 6]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ([], "per_layer_embedding"),
        ({"splits": []}, "per_layer_embedding"),
        ({"splits": [{"rows": 0, "tensors": ["a"]}]}, "rows"),
        ({"splits": [{"rows": 4, "tensors": []}]}, "tensors"),
        ({"splits": [{"rows": 4, "tensors": [1]}]}, "tensors"),
        ({"splits": [{"rows": 4, "tensors": ["a", "b"]}, {"rows": 4, "tensors": ["c"]}]}, "per_"),
        ({"pad_token_id": 9}, "per_layer_embedding"),
        ({"pad_token_id": "3"}, "pad_token_id"),
    ],
)
def test_a_damaged_table_is_named(changed: object, field: str) -> None:
    value = {**TABLE.to_json(), **changed} if isinstance(changed, dict) else changed
    with pytest.raises(ArtifactError, match=field):
        row_table({"per_layer_embedding": value})


@pytest.mark.parametrize("media", [TEXT_ONLY, BOTH])
def test_manifest_and_metadata_name_the_same_interface_and_parameters(media: MediaSettings) -> None:
    metadata = library_metadata(
        model_type="gemma4",
        quantization="q4f16_1",
        context_length=64,
        prefill_chunk=16,
        tensors=TENSORS,
        required_features=("shader-f16",),
        largest_binding_bytes=128,
        device_memory_bytes=1000,
        media=media,
    )
    manifest = manifest_json(parameter_schema_id(TENSORS), media)
    artifact = metadata["artifact"]
    assert artifact["interface_id"] == manifest["interface_id"]
    assert artifact["parameter_schema_id"] == manifest["weights"]["parameter_schema_id"]
    assert list(artifact["programs"]) == [manifest["tasks"]["chat.completions"]["executor"]]
    assert [entry["name"] for entry in metadata["params"]] == ["a", "b"]
    assert artifact["programs"][abi.PROGRAM]["exports"] == abi.PROGRAM_EXPORTS
    program = artifact["programs"][abi.PROGRAM]
    asked = [entry.get("adapter") for entry in manifest["tasks"][TASK]["inputs"].values()]
    assert set(program["adapters"]) == set(asked) - {None} == set(program["adapter_dtypes"])
    assert media_settings(metadata) == media
    assert ("media" in metadata) == (media != TEXT_ONLY)


def test_a_picture_of_the_client_is_the_container() -> None:
    image = tasks(BOTH)[TASK]["inputs"]["image"]
    resize = image["processor"]["resize"]
    assert (resize["height"], resize["width"]) == (673, 960)
    assert image["processor"]["num_embeddings"] == 280
    assert image["prompt"] == {
        "prefix_token_ids": [10],
        "placeholder_token_id": 11,
        "suffix_token_ids": [12],
    }


def test_a_sound_of_the_client_is_as_long_as_a_row_at_least() -> None:
    sound = tasks(BOTH)[TASK]["inputs"]["audio"]["processor"]
    settings = BOTH.audio
    assert settings is not None
    assert settings.rows(sound["min_samples"]) == 1
    assert settings.rows(sound["min_samples"] - 1) == 0
    assert sound["max_samples"] == 30 * sound["sample_rate_hz"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [70, 280, 1120])
@pytest.mark.parametrize("block", [48, 12, 4])
def test_the_size_is_that_of_the_adapter(block: int, budget: int, shape: str) -> None:
    assert BOTH.image is not None
    across, down = blocks = client_blocks(budget, shape)
    image = replace(BOTH.image, block_size=block, client_across=across, client_down=down)
    processor = tasks(replace(BOTH, image=image))[TASK]["inputs"]["image"]["processor"]
    resize = processor["resize"]
    assert processor["num_embeddings"] == across * down
    config = Gemma4Config.from_preset("gemma-4-12B-it", None).vision
    assert isinstance(config, UnifiedVisionConfig)
    client = ClientPicture(replace(config, patch_size=block, pooling_kernel_size=1), blocks)
    assert (resize["height"], resize["width"]) == tuple(map(int, client.spec.shape[1:3]))

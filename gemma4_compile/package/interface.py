"""The manifest and the library's metadata: the interface of a package for the WebLLM client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemma4_compile import abi
from gemma4_compile.media.limits import MAX_SAMPLES, SAMPLE_RATE_HZ
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings
from gemma4_compile.media.sizes import client_size
from gemma4_compile.package.artifacts import NamedTensor, digest, parameter_schema_id
from gemma4_compile.types import JsonObject

TEXT_ONLY = MediaSettings()
TASK = "chat.completions"
DRAFTER = "drafter"
DROPS_PADDING = "drops_padding"  # of the provenance: the page may hand over fewer blocks
DEVICE = "device"  # of the provenance, where the target is not named for it
"""Field of the metadata, and of the provenance, of packages that have one."""


def tasks(media: MediaSettings = TEXT_ONLY) -> JsonObject:
    """The manifest's tasks: one, whose inputs are those of the package."""
    inputs: JsonObject = {"text": {"processor": "tokenizer"}}
    if media.image is not None:
        inputs["image"] = _image_input(media.image)
    if media.audio is not None:
        inputs["audio"] = _audio_input(media.audio)
    return {TASK: {"executor": abi.PROGRAM, "inputs": inputs, "output": "text"}}


def _image_input(image: ImageSettings) -> JsonObject:
    across, down = image.client_blocks
    width, height = client_size((across, down), image.block_size)
    return {
        "processor": {
            "kind": "image_decode",
            "format": "rgb_u8",
            "layout": "nhwc",
            "resize": {"mode": "stretch", "height": height, "width": width},
            "num_embeddings": across * down,
        },
        "adapter": abi.IMAGE_ADAPTER,
        "prompt": _prompt(image),
    }


def _audio_input(audio: AudioSettings) -> JsonObject:
    return {
        "processor": {
            "kind": "audio_decode",
            "format": "pcm_f32",
            "sample_rate_hz": SAMPLE_RATE_HZ,
            "channels": 1,
            "min_samples": audio.unused_samples + 1,
            "max_samples": MAX_SAMPLES,
        },
        "adapter": abi.AUDIO_ADAPTER,
        "prompt": _prompt(audio),
    }


def _prompt(settings: ImageSettings | AudioSettings) -> JsonObject:
    return {
        "prefix_token_ids": [settings.begin],
        "placeholder_token_id": settings.soft,
        "suffix_token_ids": [settings.end],
    }


def adapter_dtypes(media: MediaSettings) -> dict[str, str]:
    """Dtype of what each adapter takes, by its name; kernels of WebGPU read no single bytes."""
    dtypes = {} if media.image is None else {abi.IMAGE_ADAPTER: "uint32"}
    return dtypes if media.audio is None else {**dtypes, abi.AUDIO_ADAPTER: "float32"}


def interface_id(offered: Mapping[str, object]) -> str:
    """Digest of the tasks that a package offers; the client recomputes it."""
    return digest({"tasks": offered})


def manifest_json(schema_id: str, media: MediaSettings = TEXT_ONLY) -> JsonObject:
    """Content of the manifest, for parameters of this schema."""
    offered = tasks(media)
    return {
        "schema": "mlc.model-package",
        "schema_version": 1,
        "chat_config": abi.CHAT_CONFIG_FILE,
        "interface_id": interface_id(offered),
        "weights": {"manifest": abi.TENSOR_CACHE_FILE, "parameter_schema_id": schema_id},
        "tasks": offered,
    }


def _params(tensors: Sequence[NamedTensor]) -> list[JsonObject]:
    return [
        {"name": one.name, "shape": list(one.shape), "dtype": one.dtype, "preprocs": []}
        for one in tensors
    ]


def device_of(build: Mapping[str, object]) -> str:
    """DLPack's name of the device of a package, from the entry `build` of its provenance."""
    return str(build.get(DEVICE, build.get("target", "")))


def library_metadata(
    *,
    model_type: str,
    quantization: str,
    context_length: int,
    prefill_chunk: int,
    tensors: Sequence[NamedTensor],
    required_features: Sequence[str],
    largest_binding_bytes: int,
    device_memory_bytes: int,
    media: MediaSettings = TEXT_ONLY,
    drafter: Sequence[NamedTensor] = (),
) -> JsonObject:
    """Result of the library's `_metadata`, which the client and our runtime call."""
    adapters = adapter_dtypes(media)
    return {
        **({"media": media.to_json()} if media != TEXT_ONLY else {}),
        "model_type": model_type,
        "quantization": quantization,
        "context_window_size": context_length,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "prefill_chunk_size": prefill_chunk,
        "tensor_parallel_shards": 1,
        "kv_state_kind": "kv_cache",
        "memory_usage": {},
        "params": _params(tensors),
        **({DRAFTER: {"params": _params(drafter)}} if drafter else {}),
        "artifact": {
            "schema": "mlc.compiled-program",
            "schema_version": 1,
            "interface_id": interface_id(tasks(media)),
            "parameter_schema_id": parameter_schema_id(tensors),
            "programs": {
                abi.PROGRAM: {
                    "kind": "token_generation",
                    "exports": dict(abi.PROGRAM_EXPORTS),
                    "adapters": {name: name for name in adapters},
                    "adapter_dtypes": adapters,
                }
            },
            "resources": {
                "required_features": list(required_features),
                "max_storage_buffer_binding_size": largest_binding_bytes,
                "estimated_device_memory_bytes": device_memory_bytes,
            },
        },
    }

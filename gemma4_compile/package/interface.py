"""The manifest and the library's metadata: the interface of a package for the WebLLM client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile import abi
from gemma4_compile.media.limits import MAX_SAMPLES, SAMPLE_RATE_HZ
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings
from gemma4_compile.media.sizes import client_size
from gemma4_compile.package.artifacts import NamedTensor, digest, parameter_schema_id
from gemma4_compile.package.fields import Fields
from gemma4_compile.package.step_work import STEP_WORK, StepWork
from gemma4_compile.types import JsonObject

TEXT_ONLY = MediaSettings()
TASK = "chat.completions"
EMBEDDINGS = "embeddings"
"""The task of an encoder."""
EMBEDDING = "embedding"
"""Field of the metadata, and of the provenance, of an encoder: what `embedding_entry` makes."""
LONGEST_TEXT = "max_tokens"  # of EMBEDDING, in the chat config
ROWS_AS_CHUNKS = "rows_as_chunks"
"""Where rows beside those of other sequences have the logits of a chunk's, to the last bit."""
PROGRAMMATIC_LAUNCH = "programmatic_launch"
"""Where kernels say themselves when they need what the one before them made."""
DRAFTER = "drafter"
DROPS_PADDING = "drops_padding"  # of the provenance: the page may hand over fewer blocks
DEVICE = "device"  # of the provenance, where the target is not named for it
"""Field of the metadata, and of the provenance, of packages that have one."""


TABLE = "per_layer_embedding"
"""Field of the metadata of models that have such a table."""


@dataclass(frozen=True)
class TableSplit:
    """Rows of a table, and the names of the tensors that hold them, each with an axis of rows."""

    rows: int
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class RowTable:
    """The table of per-layer embeddings, in whose place the library takes a window.

    A window is a tensor of the same type with another number of rows than any split: row i is the
    table's row of the call's token i. It is given in the place of every split's tensor of the kind.

    Attributes
    ----------
    pad_token_id : whose row a row of a picture or a sound has
    splits : in the order of the rows
    """

    pad_token_id: int
    splits: tuple[TableSplit, ...]

    @property
    def rows(self) -> int:
        """Rows of all splits."""
        return sum(split.rows for split in self.splits)

    def window_rows(self, most: int) -> int:
        """Rows of a window for calls of at most so many tokens."""
        taken = {split.rows for split in self.splits}
        return next(rows for rows in range(most, most + len(taken) + 1) if rows not in taken)

    def to_json(self) -> JsonObject:
        """Value of the metadata's field."""
        splits = [{"rows": one.rows, "tensors": list(one.tensors)} for one in self.splits]
        return {"pad_token_id": self.pad_token_id, "splits": splits}


def row_table(metadata: Mapping[str, object]) -> RowTable | None:
    """The table that a library's metadata describe; None where there is none.

    ArtifactError for a damaged field.
    """
    if TABLE not in metadata:
        return None
    fields = Fields(metadata[TABLE], abi.METADATA, TABLE)
    splits = []
    for value in fields.get("splits", list):
        split = Fields(value, abi.METADATA, f"{TABLE}.splits")
        names = split.get("tensors", list)
        if not names or not all(isinstance(name, str) for name in names):
            raise split.damaged("tensors")
        splits.append(TableSplit(split.size("rows"), tuple(names)))
    kinds = {len(split.tensors) for split in splits}
    pad = fields.get("pad_token_id", int)
    if len(kinds) != 1 or not 0 <= pad < sum(split.rows for split in splits):
        raise fields.damaged(TABLE)
    return RowTable(pad, tuple(splits))


def embedding_entry(dimensions: int) -> JsonObject:
    """What metadata and provenance say of an encoder."""
    return {"dimensions": dimensions}


def embeds(described: Mapping[str, object]) -> bool:
    """Return whether metadata, or the entry `build` of a provenance, are of an encoder."""
    return described.get(EMBEDDING) is not None


def tasks(media: MediaSettings = TEXT_ONLY, *, embeds: bool = False) -> JsonObject:
    """The manifest's tasks: one, whose inputs are those of the package.

    `embeds` : it is an encoder, which makes embeddings and no replies
    """
    inputs: JsonObject = {"text": {"processor": "tokenizer"}}
    if embeds:
        return {EMBEDDINGS: {"executor": abi.PROGRAM, "inputs": inputs, "output": "embedding"}}
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


def manifest_json(
    schema_id: str, media: MediaSettings = TEXT_ONLY, *, embeds: bool = False
) -> JsonObject:
    """Content of the manifest, for parameters of this schema."""
    offered = tasks(media, embeds=embeds)
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
    table: RowTable | None = None,
    embedding: JsonObject | None = None,
    client_texts: int | None = None,
    work: StepWork | None = None,
    rows_as_chunks: bool = False,
    programmatic_launch: bool = False,
) -> JsonObject:
    """Result of the library's `_metadata`, which the client and our runtime call.

    `embedding` : `embedding_entry` of an encoder; `client_texts` : of a call of the client's to it;
    `rows_as_chunks`, `programmatic_launch` : as of ROWS_AS_CHUNKS, PROGRAMMATIC_LAUNCH
    """
    adapters = adapter_dtypes(media)
    offered = tasks(media, embeds=embedding is not None)
    program = {"kind": "token_generation", "exports": dict(abi.PROGRAM_EXPORTS)}
    if embedding is not None:
        program = {"kind": EMBEDDING, "exports": {abi.EMBED_TEXTS: abi.EMBED_TEXTS}}
    return {
        **({"media": media.to_json()} if media != TEXT_ONLY else {}),
        "model_type": model_type,
        "quantization": quantization,
        "context_window_size": context_length,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "prefill_chunk_size": prefill_chunk,
        "tensor_parallel_shards": 1,
        "kv_state_kind": "kv_cache" if embedding is None else "none",
        "memory_usage": {},
        "params": _params(tensors),
        **({DRAFTER: {"params": _params(drafter)}} if drafter else {}),
        **({TABLE: table.to_json()} if table is not None else {}),
        **({} if embedding is None else {EMBEDDING: embedding}),
        **({} if work is None else {STEP_WORK: work.to_json()}),
        **({ROWS_AS_CHUNKS: True} if rows_as_chunks else {}),
        **({PROGRAMMATIC_LAUNCH: True} if programmatic_launch else {}),
        **({} if client_texts is None else {"max_batch_size": client_texts}),
        "artifact": {
            "schema": "mlc.compiled-program",
            "schema_version": 1,
            "interface_id": interface_id(offered),
            "parameter_schema_id": parameter_schema_id(tensors),
            "programs": {
                abi.PROGRAM: {
                    **program,
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

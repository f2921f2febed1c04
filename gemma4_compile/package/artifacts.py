"""The JSON files of a package, typed: manifest, chat config, tensor cache, provenance.

Written by packaging, read by the runtime; the first three are what the WebLLM client reads
(`abi.WEBLLM_VERSION`), the last is ours.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gemma4_compile import abi
from gemma4_compile.checkpoint.json_text import parse_object
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.fields import COMPILE_AGAIN, PLAIN_NAME, Fields
from gemma4_compile.package.libraries import LibraryRecord, read_libraries
from gemma4_compile.package.pieces import Listed, Pieces
from gemma4_compile.system.regular_files import MAX_JSON_BYTES, read_regular
from gemma4_compile.types import JsonObject

PACKAGE_SCHEMA = "gemma4_compile.package"
PACKAGE_SCHEMA_VERSION = 1
DTYPE_BYTES = {"float16": 2, "float32": 4, "uint32": 4}
Build = Mapping[str, Any]
"""What provenance holds of a build; `Provenance.from_json` does not look into it."""


class NamedTensor(Protocol):
    """The fields of a tensor that the parameter schema holds."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> str: ...  # noqa: D102


def canonical_json(value: object) -> str:
    """JSON as digests are computed from it: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """`sha256:` and the hash of the canonical JSON."""
    return f"sha256:{hashlib.sha256(canonical_json(value).encode()).hexdigest()}"


def parameter_schema_id(tensors: Sequence[NamedTensor]) -> str:
    """Digest of the parameters' names, shapes and dtypes, in order."""
    return digest([[tensor.name, list(tensor.shape), tensor.dtype] for tensor in tensors])


@dataclass(frozen=True)
class ChatConfig:
    """`mlc-chat-config.json`; `conversation` holds the template, the sampling defaults, the ids."""

    model_type: str
    quantization: str
    vocab_size: int
    context_window_size: int
    prefill_chunk_size: int
    tokenizer_files: tuple[str, ...]
    conversation: Mapping[str, object]

    def to_json(self) -> JsonObject:
        """The file's content."""
        sizes = {
            "vocab_size": self.vocab_size,
            "context_window_size": self.context_window_size,
            "prefill_chunk_size": self.prefill_chunk_size,
        }
        return {
            "version": "0.1.0",
            "model_type": self.model_type,
            "quantization": self.quantization,
            "model_config": {"model_type": self.model_type, **sizes},
            **sizes,
            "sliding_window_size": -1,
            "attention_sink_size": -1,
            "tokenizer_files": list(self.tokenizer_files),
            **self.conversation,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> ChatConfig:
        """Read the file's content; ArtifactError names a damaged field."""
        read = Fields(values, abi.CHAT_CONFIG_FILE)
        files = read.get("tokenizer_files", list)
        if not all(isinstance(file, str) and PLAIN_NAME.fullmatch(file) for file in files):
            raise read.damaged("tokenizer_files")
        own = cls(
            model_type=read.get("model_type", str),
            quantization=read.get("quantization", str),
            vocab_size=read.size("vocab_size"),
            context_window_size=read.size("context_window_size"),
            prefill_chunk_size=read.size("prefill_chunk_size"),
            tokenizer_files=tuple(files),
            conversation={},
        )
        known = own.to_json()
        rest = {name: value for name, value in values.items() if name not in known}
        read.get("conv_template", dict)
        return cls(**{**own.__dict__, "conversation": rest})


@dataclass(frozen=True)
class TensorRecord:
    """A stored tensor inside a shard."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    byte_offset: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Shard:
    """One file of weights, raw."""

    file: str
    nbytes: int
    md5: str
    records: tuple[TensorRecord, ...]


@dataclass(frozen=True)
class TensorCache:
    """`tensor-cache.json`: which tensor lies where."""

    shards: tuple[Shard, ...]
    parameter_count: int  # weights before quantisation, for the file's bits per parameter

    def to_json(self) -> JsonObject:
        """The file's content."""
        total = sum(shard.nbytes for shard in self.shards)
        return {
            "metadata": {
                "ParamSize": sum(len(shard.records) for shard in self.shards),
                "ParamBytes": total,
                "BitsPerParam": round(8 * total / self.parameter_count, 4),
                "ParamCount": self.parameter_count,
            },
            "records": [
                {
                    "dataPath": shard.file,
                    "format": "raw-shard",
                    "nbytes": shard.nbytes,
                    "md5sum": shard.md5,
                    "records": [
                        {
                            "name": record.name,
                            "shape": list(record.shape),
                            "dtype": record.dtype,
                            "format": "raw",
                            "nbytes": record.nbytes,
                            "byteOffset": record.byte_offset,
                        }
                        for record in shard.records
                    ],
                }
                for shard in self.shards
            ],
        }

    @classmethod
    def from_json(
        cls, values: Mapping[str, object], file: str = abi.TENSOR_CACHE_FILE
    ) -> TensorCache:
        """Read and check a file's content; ArtifactError names the file and what is damaged."""
        read = Fields(values, file)
        metadata = Fields(read.get("metadata", dict), file)
        shards = tuple(_read_shard(entry, file) for entry in read.get("records", list))
        names = [record.name for shard in shards for record in shard.records]
        if len(set(names)) != len(names):
            raise read.damaged("records")
        return cls(shards, metadata.size("ParamCount"))


@dataclass(frozen=True)
class Provenance:
    """`provenance.json`: what the package was made from and by, and the hash of every other file.

    Attributes
    ----------
    library : file of the main library, which the stock client loads; None without one
    build : source, versions, recipe, target, options; no times, no paths. Of the main library
        where it is of one
    files : size and sha256 of every file but this one, by name
    libraries : all of them, the main one first; of a package that lists none, its only one
    pieces : of files that are longer than one, by name; packages of earlier versions have none
    """

    library: str | None
    build: Build
    files: Mapping[str, tuple[int, str]]
    libraries: tuple[LibraryRecord, ...] = ()
    pieces: Mapping[str, Pieces] = field(default_factory=dict)

    def listed(self, name: str) -> Listed:
        """Hashes of a file that is listed."""
        return Listed(self.files[name][1], self.pieces.get(name))

    def to_json(self) -> JsonObject:
        """The file's content."""
        libraries = [library.to_json() for library in self.libraries]
        return {
            "schema": PACKAGE_SCHEMA,
            "schema_version": PACKAGE_SCHEMA_VERSION,
            "library": self.library,
            **({"libraries": libraries} if libraries else {}),
            "build": dict(self.build),
            "files": {
                name: {"nbytes": nbytes, "sha256": sha256, **self._pieces_of(name)}
                for name, (nbytes, sha256) in sorted(self.files.items())
            },
        }

    def _pieces_of(self, name: str) -> JsonObject:
        return {"pieces": self.pieces[name].to_json()} if name in self.pieces else {}

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Provenance:
        """Read the file's content; ArtifactError for a file that is not ours or damaged."""
        read = Fields(values, abi.PROVENANCE_FILE)
        if values.get("schema") != PACKAGE_SCHEMA:
            raise read.damaged("schema")
        version = read.size("schema_version")
        if version != PACKAGE_SCHEMA_VERSION:
            raise ArtifactError(
                f"the package has schema version {version}, expected {PACKAGE_SCHEMA_VERSION}",
                hint=COMPILE_AGAIN,
            )
        files: dict[str, tuple[int, str]] = {}
        pieces: dict[str, Pieces] = {}
        for name, entry in read.get("files", dict).items():
            if not PLAIN_NAME.fullmatch(name) or not isinstance(entry, Mapping):
                raise read.damaged("files")
            fields = Fields(entry, abi.PROVENANCE_FILE)
            files[name] = (fields.get("nbytes", int), fields.get("sha256", str))
            if entry.get("pieces") is not None:
                pieces[name] = Pieces.from_json(entry["pieces"], name, files[name][0])
        if len({name.lower() for name in files}) < len(files):  # one file, on most Macs and Windows
            raise read.damaged("files")
        library = values.get("library")
        if library is not None and (not isinstance(library, str) or library not in files):
            raise read.damaged("library")
        build = read.get("build", dict)
        libraries = read_libraries(values.get("libraries"), library, build, files)
        return cls(library, build, files, libraries, pieces)


def read_artifact(path: Path) -> JsonObject:
    """Read a JSON object of a package; ArtifactError names a missing or damaged file."""
    try:
        values = parse_object(read_regular(path, MAX_JSON_BYTES), finite=True)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"`{path.name}` is missing from `{path.parent}`",
            hint="give the directory that gemma4-compile wrote",
        ) from error
    except OSError as error:
        raise ArtifactError(
            f"cannot read `{path}`: {error.strerror}", hint="check the file and its permissions"
        ) from error
    except ValueError as error:
        raise ArtifactError(f"`{path}` is damaged: {error}", hint=COMPILE_AGAIN) from error
    return values


def _read_shard(entry: object, cache_file: str) -> Shard:
    read = Fields(entry, cache_file)
    file: str = read.get("dataPath", str)
    if not PLAIN_NAME.fullmatch(file):
        raise read.damaged("dataPath")
    nbytes = read.size("nbytes")
    records = tuple(_read_record(item, nbytes, cache_file) for item in read.get("records", list))
    if nbytes != max((record.byte_offset + record.nbytes for record in records), default=0):
        raise read.damaged(f"{file}.nbytes")
    return Shard(file, nbytes, read.get("md5sum", str), records)


def _read_record(item: object, shard_bytes: int, cache_file: str) -> TensorRecord:
    read = Fields(item, cache_file)
    name: str = read.get("name", str)
    shape = read.get("shape", list)
    if not all(type(size) is int and size > 0 for size in shape):
        raise read.damaged(f"{name}.shape")
    dtype: str = read.get("dtype", str)
    if dtype not in DTYPE_BYTES or read.get("format", str) != "raw":
        raise read.damaged(f"{name}.dtype")
    record = TensorRecord(name, tuple(shape), dtype, read.get("byteOffset", int))
    inside = 0 <= record.byte_offset <= shard_bytes - record.nbytes
    if not inside or record.nbytes != read.get("nbytes", int):
        raise read.damaged(f"{name}.byteOffset")
    return record

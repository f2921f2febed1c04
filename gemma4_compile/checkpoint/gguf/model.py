"""A model in GGUF: its tensors by transformers' names, its config and its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gemma4_compile.checkpoint.gguf import names, types
from gemma4_compile.checkpoint.gguf.config import ModelFile, config_of
from gemma4_compile.checkpoint.gguf.files import parts_of
from gemma4_compile.checkpoint.gguf.header import Entry, Header, read_header
from gemma4_compile.checkpoint.gguf.metadata import Metadata
from gemma4_compile.checkpoint.safetensors_file import (
    Float32Array,
    OfOne,
    TensorInfo,
    computed,
    read_bytes,
    read_rows,
)
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.model_spec.config.variants import DTYPES
from gemma4_compile.options.process import warn
from gemma4_compile.types import JsonObject

_SHOWN = 60
_MAX_DIVISORS = 1 << 16
_LOOKED_AT, _MAX_WIDTH = 64, 1 << 16  # rows, and elements of one, for the dtype
_FLOATS = ("F32", "F16", "BF16")
_WHOLE = "give the file of the whole model, or its safetensors checkpoint"


@dataclass(frozen=True)
class BlockRows(OfOne):
    """Rows of a matrix that is stored in blocks; see `safetensors_file.Decoder`."""

    type: str

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Rows [begin, end) of the matrix."""
        blocks = read_bytes(self.stored, begin, end)
        return types.decoded(blocks.reshape(end - begin, -1), self.type)


@dataclass(frozen=True)
class GGUFModel:
    """An opened model.

    Attributes
    ----------
    where : the file's name, of the first of several
    files : all files, by their names
    config : the parsed `config.json`
    values : the metadata, where the tokenizer is
    tensors : by transformers' names
    """

    where: str
    files: Mapping[str, Path]
    config: JsonObject
    values: Metadata
    tensors: Mapping[str, TensorInfo]


def open_model(path: Path, architecture: str) -> GGUFModel:
    """Read the headers of a model's files.

    Parameters
    ----------
    path : a file, or a folder with one model
    architecture : which is asked for, of `names`

    Raises
    ------
    CheckpointError
        If a file is missing, damaged, of another model, or of a type that is not read.
    UsageError
        If the `gguf` package is not installed.
    """
    headers = [read_header(part) for part in parts_of(path)]
    first = headers[0]
    where, values = first.path.name, Metadata(first.metadata, first.path.name)
    _check_architecture(values, where, architecture)
    placed = _placed(headers, values)
    tensors = _tensors(placed, where)
    divisors = placed.get(names.ROPE_DIVISORS)
    file = ModelFile(
        where,
        architecture,
        values,
        {entry.name: entry for _, entry in placed.values()},
        None if divisors is None else _divisors(*divisors),
        _dtype(placed),
    )
    files = {header.path.name: header.path for header in headers}
    return GGUFModel(where, files, config_of(file), values, tensors)


def _check_architecture(values: Metadata, where: str, expected: str) -> None:
    found = values.text("general.architecture")
    kind = values.text("general.type")
    if kind == "adapter":
        raise CheckpointError(
            f"`{where}` is an adapter, not a model",
            hint="merge it with llama.cpp's llama-export-lora, or give the adapter of PEFT and its "
            "model",
        )
    if found == names.TOWERS:
        raise CheckpointError(
            f"`{where}` has the parts that read pictures and sounds alone, for llama.cpp",
            hint="give the file of the text decoder; pictures and sounds need the safetensors "
            "checkpoint",
        )
    if found == expected:
        return
    if found == names.DRAFTER:
        raise CheckpointError(
            f"`{where}` is a drafter, which drafts tokens for another model",
            hint="compile that model, with this file as its --drafter",
        )
    if found == names.TARGET:
        raise CheckpointError(
            f"`{where}` is no drafter, but a model of its own",
            hint=f"drafters have the architecture {names.DRAFTER!r}",
        )
    raise CheckpointError(
        f"`{where}` has the architecture {printable(str(found)[:_SHOWN])!r}, expected {expected!r}",
        hint="of GGUF files only those of Gemma 4 are read; of Gemma 3n and EmbeddingGemma 2 give "
        "the safetensors checkpoint",
    )


def _placed(headers: Sequence[Header], values: Metadata) -> dict[str, tuple[Header, Entry]]:
    """The tensors of all parts, each with the header of its file."""
    count = values.integer("split.count", 1)
    if count != max(1, len(headers)) and (count > 1 or len(headers) > 1):
        raise values.wrong("split.count", f"{len(headers)}, as files are there", count)
    found: dict[str, tuple[Header, Entry]] = {}
    for header in headers:
        for name, entry in header.tensors.items():
            if name in found:
                raise CheckpointError(
                    f"tensor `{name}` is in `{found[name][0].path.name}` and in "
                    f"`{header.path.name}`",
                    hint="download all parts again, of one model",
                )
            found[name] = header, entry
    total = values.integer("split.tensors.count", len(found))
    if total != len(found):
        raise values.wrong("split.tensors.count", f"{len(found)}, as tensors are there", total)
    return found


def _tensors(placed: Mapping[str, tuple[Header, Entry]], where: str) -> dict[str, TensorInfo]:
    """Tensors of the decoder by transformers' names."""
    found: dict[str, TensorInfo] = {}
    towers = [name for name in placed if names.is_of_towers(name)]
    if towers:
        warn(
            f"`{where}` has {len(towers)} tensors of what reads pictures and sounds, such as "
            f"`{printable(towers[0])}`: they are left out",
            "for pictures and sounds give the safetensors checkpoint",
        )
    tables = []
    for name, (header, entry) in placed.items():
        if name == names.ROPE_DIVISORS or name in towers:
            continue
        if names.is_of_clusters(name) and not names.has_clusters(placed):
            continue  # llama.cpp's converter leaves them out, and replies are the same
        usual = names.usual_name(name)
        if usual is None:
            raise CheckpointError(
                f"tensor `{name}` in `{header.path.name}` belongs to no part of the model",
                hint="convert the model with llama.cpp, or give its safetensors checkpoint",
            )
        is_table = name in names.TABLES
        types.check_type(entry.type.name, name, header.path.name, is_table=is_table)
        if is_table and entry.type.name in types.OF_TABLES:
            tables.append(f"`{name}` has type {entry.type.name}")
        found[usual] = _tensor(usual, header, entry)
    if tables:
        warn(
            f"`{where}`: {' and '.join(tables)}: its error and the recipe's add up there",
            "the safetensors checkpoint has them as they were trained",
        )
    return found


def _tensor(usual: str, header: Header, entry: Entry) -> TensorInfo:
    kind = entry.type.name
    place = (header.path, entry.offset_bytes, entry.nbytes, header.stamp)
    if kind in types.PLAIN:
        return TensorInfo(usual, types.PLAIN[kind], entry.shape, *place)
    if len(entry.shape) < 2:
        raise CheckpointError(
            f"tensor `{entry.name}` in `{header.path.name}` is a vector of type {kind}, expected "
            "F32, F16 or BF16",
            hint=_WHOLE,
        )
    return computed(
        usual, entry.shape, BlockRows(TensorInfo(entry.name, kind, entry.shape, *place), kind)
    )


def _divisors(header: Header, entry: Entry) -> Float32Array:
    """Divisors of the rotary embedding, which are few."""
    if entry.type.name != "F32" or prod(entry.shape) > _MAX_DIVISORS:
        raise CheckpointError(
            f"tensor `{entry.name}` in `{header.path.name}` has type {entry.type.name} and shape "
            f"{entry.shape}, expected a vector of F32",
            hint=_WHOLE,
        )
    tensor = _tensor(entry.name, header, entry)
    return read_rows(tensor, 0, tensor.row_count).reshape(-1)


def _dtype(placed: Mapping[str, tuple[Header, Entry]]) -> str:
    """The dtype that the model was trained in, as far as its values show it.

    No key says it, and constants are rounded to it. The converter keeps norms in F32 whatever they
    were, so that they, and the table where it is whole, show what was before.
    """
    found = (placed[name] for name in (names.OUTPUT_NORM, names.EMBEDDING) if name in placed)
    values = [
        read_rows(tensor, 0, min(tensor.row_count, _LOOKED_AT)).reshape(-1)
        for tensor in (_tensor(e.name, h, e) for h, e in found if e.type.name in _FLOATS)
        if prod(tensor.shape[1:]) <= _MAX_WIDTH
    ]
    return next(dtype for dtype in DTYPES if all(_holds(dtype, one) for one in values))


def _holds(dtype: str, values: Float32Array) -> bool:
    """Return whether a dtype has all of these numbers."""
    if dtype == "bfloat16":
        return not (values.view(np.uint32) & 0xFFFF).any()
    with np.errstate(over="ignore"):
        return dtype == "float32" or bool((values.astype(np.float16) == values).all())

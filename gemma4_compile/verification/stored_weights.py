"""The float32 weights that a package's stored tensors mean, read by the checkpoint's names.

What the transformers model is given, so that a comparison sees the arithmetic alone and not what
the recipe rounded away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import ArtifactError
from gemma4_compile.model_spec.parameters import Arrangement, Parameter
from gemma4_compile.package.artifacts import Shard, TensorCache, TensorRecord
from gemma4_compile.quantization.recipe import StoredParameter
from gemma4_compile.types import Array

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


def parameter_rows(parameter: Parameter, source: int, rows: IntArray) -> IntArray:
    """Rows of the parameter that hold its source number `source`."""
    if parameter.arrangement is Arrangement.INTERLEAVE_ROWS:
        return 2 * rows + source
    if parameter.arrangement is Arrangement.INTERLEAVE_HALVES:
        size = parameter.row_group
        matrix, row = rows // size, rows % size
        half = size // 2
        return matrix * size + np.where(row < half, 2 * row, 2 * (row - half) + 1)
    if parameter.arrangement is Arrangement.SCALARS:
        return rows + source
    return rows + sum(item.shape[0] for item in parameter.sources[:source])


class StoredWeights:
    """Reads a package's shards; the shards stay mapped, nothing else is held."""

    def __init__(
        self, directory: Path, cache: TensorCache, plan: Sequence[StoredParameter]
    ) -> None:
        """Map the shards.

        Raises
        ------
        ArtifactError
            If a shard cannot be read or is short, or a tensor of the plan is not in the cache.
        """
        self._tensors: dict[str, Array] = {}
        for shard in cache.shards:
            mapped = _map(directory / shard.file, shard)
            for record in shard.records:
                self._tensors[record.name] = _view(mapped, record)
        self._sources = {
            source.name: (stored, index)
            for stored in plan
            for index, source in enumerate(stored.parameter.sources)
        }
        for stored in plan:
            for tensor in stored.tensors:
                found = self._tensors.get(tensor.name)
                if found is None or (found.shape, found.dtype.name) != (tensor.shape, tensor.dtype):
                    raise ArtifactError(
                        f"the package holds no tensor `{tensor.name}` of shape {tensor.shape} and "
                        f"dtype {tensor.dtype}",
                        hint="compile the package again",
                    )

    def read(self, name: str, begin: int, end: int) -> Float32Array:
        """Rows [begin, end) of a checkpoint tensor (elements, of a vector) as they are stored."""
        stored, source = self._sources[name]
        parameter = stored.parameter
        if parameter.arrangement is Arrangement.STACK:
            return self._rows(stored, np.array([source]))[0, begin:end]
        rows = np.arange(begin, end, dtype=np.int64)
        return self._rows(stored, parameter_rows(parameter, source, rows))

    def _rows(self, stored: StoredParameter, wanted: IntArray) -> Float32Array:
        """Rows of a parameter, as they are stored."""
        parameter = stored.parameter
        out = np.empty((len(wanted), *parameter.shape[1:]), np.float32)
        for part in stored.row_splits:
            inside = (wanted >= part.row_begin) & (wanted < part.row_end)
            if inside.any():
                rows = wanted[inside] - part.row_begin
                arrays = [self._tensors[tensor.name][rows] for tensor in part.tensors]
                out[inside] = stored.scheme.load(arrays)
        return out if parameter.scale == 1.0 else out / np.float32(parameter.scale)


def _map(path: Path, shard: Shard) -> npt.NDArray[np.uint8]:
    try:
        mapped = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"cannot read the weight shard `{path}`: {error}", hint="compile the package again"
        ) from error
    if mapped.size != shard.nbytes:
        raise ArtifactError(
            f"weight shard `{path}`: expected {shard.nbytes} bytes, found {mapped.size}",
            hint="compile the package again",
        )
    return mapped


def _view(mapped: npt.NDArray[np.uint8], record: TensorRecord) -> Array:
    raw = mapped[record.byte_offset : record.byte_offset + record.nbytes]
    return raw.view(np.dtype(record.dtype).newbyteorder("<")).reshape(record.shape)

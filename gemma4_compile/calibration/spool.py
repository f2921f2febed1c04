"""Finished layers of a calibration on disk, and their tensors as the rest of the compiler has them.

The folder is `.NAME.calibration` beside the output. A file of a layer appears whole or not at all,
and is taken over by a later run with the same key: the same weights, recipe, text and method.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from gemma4_compile.calibration.schemes import CalibratedScheme
from gemma4_compile.checkpoint.safetensors_file import (
    Float32Array,
    TensorInfo,
    computed,
    read_header,
)
from gemma4_compile.errors import ArtifactError, CheckpointError, InterruptedRunError
from gemma4_compile.package.output_directory import is_locked, write_errors
from gemma4_compile.quantization.convert import StoredReaders
from gemma4_compile.system import regular_files
from gemma4_compile.types import Array

_LOCK, _TEXT = ".lock", "text.json"
_PART = "part-*.safetensors"
_MAX_TEXT_BYTES = 16 << 20
_WORDS, _SCALES, _DIGEST = ".q_weight", ".q_scale", "sha256"
_DTYPES = {"U8": "u1", "U32": "<u4", "F16": "<f2", "F32": "<f4"}

Stored = Mapping[str, tuple[Array, Array]]
"""Words and scales by the name of a checkpoint tensor."""


def place(output: Path) -> Path:
    """The folder beside an output."""
    output = Path(os.path.abspath(output))
    return output.with_name(f".{output.name}.calibration")


@dataclass(frozen=True)
class _ChosenCodes:
    """Rows of a tensor whose integers were chosen; it follows the checkpoint's tensor."""

    original: TensorInfo
    words: TensorInfo
    scales: TensorInfo
    scheme: CalibratedScheme

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.original,)

    def read_rows(self, begin: int, end: int) -> Float32Array:
        return self.scheme.load([_rows(one, begin, end) for one in (self.words, self.scales)])


def stored_readers(tensors: Mapping[str, TensorInfo]) -> StoredReaders:
    """Readers of tensors of `Spool.tensors` as their schemes store them."""
    decoders = {name: tensor.decoder for name, tensor in tensors.items()}
    return {
        name: tuple(partial(_rows, one) for one in (decoder.words, decoder.scales))
        for name, decoder in decoders.items()
        if isinstance(decoder, _ChosenCodes)
    }


def _digest(arrays: Mapping[str, Array]) -> bytes:
    """Of all arrays but the one that has it."""
    found = hashlib.sha256()
    for name in sorted(arrays.keys() - {_DIGEST}):
        found.update(name.encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.digest()


def _rows(tensor: TensorInfo, begin: int, end: int | None) -> Array:
    try:
        mapped: Array = np.memmap(
            tensor.path,
            dtype=_DTYPES[tensor.dtype],
            mode="r",
            offset=tensor.offset_bytes,
            shape=tensor.shape,
        )
        return np.array(mapped[begin:end])
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot read `{tensor.path}`: {error}", hint="run the same command again"
        ) from error


class Spool:
    """The folder of a calibration, which `opened` locks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def text(self, key: str) -> list[list[int]] | None:
        """Token ids that an earlier run with this key has written; None if there is none.

        What another key has left is removed.
        """
        try:
            content = regular_files.read_regular(self.folder / _TEXT, _MAX_TEXT_BYTES)
            values = json.loads(content)
            if values["key"] == key:
                return [[int(one) for one in row] for row in values["ids"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        for path in (*self.folder.glob(_PART), self.folder / _TEXT):
            path.unlink(missing_ok=True)
        return None

    def note_text(self, key: str, rows: list[list[int]]) -> None:
        """Keep the text; every part that follows belongs to it."""
        self._write(_TEXT, json.dumps({"key": key, "ids": rows}).encode())

    def has(self, part: str) -> bool:
        """Return whether a part was finished."""
        try:
            header = read_header(self._path(part))
            found = _digest({name: _rows(tensor, 0, None) for name, tensor in header.items()})
            return bytes(_rows(header[_DIGEST], 0, None)) == found
        except (CheckpointError, KeyError):
            return False

    def note(self, part: str, stored: Stored) -> None:
        """Keep a finished part."""
        arrays = {}
        for name, (words, scales) in stored.items():
            arrays[name + _WORDS], arrays[name + _SCALES] = words, scales
        if arrays:
            arrays[_DIGEST] = np.frombuffer(_digest(arrays), np.uint8)
            self._write(self._path(part).name, save(arrays))

    def tensors(
        self,
        part: str,
        originals: Mapping[str, TensorInfo],
        schemes: Mapping[str, CalibratedScheme],
    ) -> dict[str, TensorInfo]:
        """Tensors of a finished part, in place of the checkpoint's."""
        header = read_header(self._path(part))
        found = {}
        for full, words in header.items():
            if not full.endswith(_WORDS):
                continue
            name = full.removesuffix(_WORDS)
            original = originals[name]
            decoder = _ChosenCodes(original, words, header[name + _SCALES], schemes[name])
            found[name] = computed(original.name, original.shape, decoder)
        return found

    def remove(self) -> None:
        """Remove the files, and the folder if nothing of others is in it."""
        for path in (*self.folder.glob(_PART), self.folder / _TEXT, self.folder / _LOCK):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, part: str) -> Path:
        return self.folder / _PART.replace("*", part)

    def _write(self, name: str, content: bytes) -> None:
        unfinished = self.folder / f"{name}.unfinished"
        with write_errors(self.folder):
            unfinished.unlink(missing_ok=True)
            regular_files.write_new(unfinished, content)
            unfinished.rename(self.folder / name)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Spool]:
    """Make and lock a folder.

    Raises
    ------
    ArtifactError
        If something else is in its place, or another run works there.
    """
    with write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        regular_files.check_own_directory(folder)
        lock = regular_files.open_lock(folder / _LOCK)
    with lock:
        if not is_locked(lock, folder / _LOCK):
            raise ArtifactError(
                f"another run is calibrating in `{folder}`",
                hint="wait for it, or choose another -o",
            )
        for path in folder.glob("*.unfinished"):
            path.unlink()
        found = Spool(folder)
        try:
            yield found
        except KeyboardInterrupt as error:
            if isinstance(error, InterruptedRunError) or not (folder / _TEXT).exists():
                raise
            raise InterruptedRunError(
                f"what is finished is in {folder}: the same command goes on from it; to delete it: "
                f"rm -r {shlex.quote(str(folder))}"
            ) from error
        finally:
            if not (folder / _TEXT).exists():  # nothing to go on from
                found.remove()

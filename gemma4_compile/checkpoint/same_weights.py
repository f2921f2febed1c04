"""Whether tensors hold the same weights: to the last bit, or by samples of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import numpy as np

from gemma4_compile.checkpoint.safetensors_file import TensorInfo, check_stamp, read_rows
from gemma4_compile.errors import CheckpointError
from gemma4_compile.system import regular_files

SAMPLE_BYTES = 4096
_COMPARED_BYTES = 8 << 20


def holds_same(first: TensorInfo, second: TensorInfo) -> bool:
    """Return whether two tensors have the same dtype, shape and bytes, or computed values.

    Raises
    ------
    CheckpointError
        If a file cannot be read or changed since its header was read.
    """
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if first.decoder is not None or second.decoder is not None:
        return _compute_same(first, second)
    done = 0
    try:
        with (
            regular_files.open_regular(first.path) as one,
            regular_files.open_regular(second.path) as other,
        ):
            for file, tensor in ((one, first), (other, second)):
                check_stamp(tensor, os.fstat(file.fileno()))
                file.seek(tensor.offset_bytes)
            while done < first.nbytes:
                size = min(_COMPARED_BYTES, first.nbytes - done)
                block = one.read(size)
                if len(block) < size or block != other.read(size):
                    return False
                done += size
    except OSError as error:
        raise CheckpointError(f"cannot read `{first.path.name}`: {error.strerror}") from error
    return True


def _compute_same(first: TensorInfo, second: TensorInfo) -> bool:
    count = first.row_count
    step = max(1, _COMPARED_BYTES * count // max(1, first.nbytes))
    for begin in range(0, count, step):
        end = min(begin + step, count)
        one, other = (read_rows(tensor, begin, end) for tensor in (first, second))
        if not np.array_equal(one, other, equal_nan=True):
            return False
    return True


def sample_hash(tensors: Iterable[TensorInfo]) -> str:
    """Hash of the names, and of bytes at the begin, middle and end of every tensor.

    It tells checkpoints apart without reading gigabytes: training moves every matrix as a whole.

    Raises
    ------
    CheckpointError
        If a file cannot be read or changed since its header was read.
    """
    digest = hashlib.sha256()
    stored = dict.fromkeys(leaf for tensor in tensors for leaf in tensor.stored)
    for tensor in sorted(stored, key=lambda item: item.name):
        digest.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
        last = max(0, tensor.nbytes - SAMPLE_BYTES)
        try:
            with regular_files.open_regular(tensor.path) as file:
                check_stamp(tensor, os.fstat(file.fileno()))
                for begin in (0, last // 2, last):
                    file.seek(tensor.offset_bytes + begin)
                    digest.update(file.read(min(SAMPLE_BYTES, tensor.nbytes)))
        except OSError as error:
            raise CheckpointError(f"cannot read `{tensor.path.name}`: {error.strerror}") from error
    return f"sha256:{digest.hexdigest()}"

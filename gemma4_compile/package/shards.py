"""The weight shards of a package.

Tensors are laid out in the order of the parameter tuple, in shards of about 32 MiB, raw; a tensor
that is larger than that has a shard of its own. Blocks go to their places as they come, so no
tensor is ever held. Finished shards are noted with their hashes in `progress.json`; a later run
with the same fingerprint checks and keeps them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.package.artifacts import Shard, TensorCache, TensorRecord
from gemma4_compile.package.files import FileHash, hash_file
from gemma4_compile.package.output_directory import (
    PROGRESS_FILE,
    SHARD_PATTERN,
    write_errors,
)
from gemma4_compile.package.pieces import Listed
from gemma4_compile.progress import ByteProgress
from gemma4_compile.quantization.convert import (
    ConversionStep,
    RowReader,
    StoredBlock,
    StoredReaders,
    conversion_steps,
)
from gemma4_compile.quantization.recipe import RowSplit, StoredParameter
from gemma4_compile.quantization.scheme import StoredTensor
from gemma4_compile.system import regular_files
from gemma4_compile.system.files import replace_file, write_at
from gemma4_compile.system.parallel import in_order

SHARD_BYTES = 32 << 20
_SHARD = "params_shard_"
TENSOR_ALIGNMENT = 64  # so that the native runtime can use a mapped shard as it lies
_MAX_PROGRESS_BYTES = 16 << 20


@dataclass(frozen=True)
class ShardPlan:
    """A shard before it is written."""

    file: str
    records: tuple[TensorRecord, ...]

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.records[-1].byte_offset + self.records[-1].nbytes

    @property
    def tensor_bytes(self) -> int:
        """Size of the tensors, without the gaps between them (zeros)."""
        return sum(record.nbytes for record in self.records)


def plan_shards(
    tensors: Iterable[StoredTensor], shard_bytes: int = SHARD_BYTES
) -> tuple[ShardPlan, ...]:
    """Lay tensors out in shards, in their order, each at a multiple of TENSOR_ALIGNMENT."""
    groups: list[list[TensorRecord]] = []
    used = 0
    for tensor in tensors:
        begin = -(-used // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        if not groups or begin + tensor.nbytes > shard_bytes:
            groups.append([])
            begin = 0
        groups[-1].append(TensorRecord(tensor.name, tensor.shape, tensor.dtype, begin))
        used = begin + tensor.nbytes
    return tuple(
        ShardPlan(f"{_SHARD}{index}.bin", tuple(records)) for index, records in enumerate(groups)
    )


def check_shard_size(tensors: Iterable[StoredTensor], shard_bytes: int) -> None:
    """Raise UsageError if a tensor, which lies in one shard as clients read it, is larger."""
    largest = max(tensors, key=lambda tensor: tensor.nbytes)
    if largest.nbytes > shard_bytes:
        raise UsageError(
            f"--shard-size: `{largest.name}` has {largest.nbytes} bytes, and lies in one shard, "
            f"of which none may have more than {shard_bytes}",
            hint=f"give --shard-size {-(-largest.nbytes // 2**20)}MiB or more, or choose a host "
            "that takes such files (docs/web.md)",
        )


class Progress:
    """`progress.json`: the finished shards of a run, for the run that continues it."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._path = directory / PROGRESS_FILE
        self._fingerprint = fingerprint
        self.finished: dict[str, FileHash] = {}

    def load(self, plans: Sequence[ShardPlan]) -> None:
        """Keep what an earlier run with this fingerprint finished and is still intact.

        Its other shards are removed.
        """
        directory = self._path.parent
        noted: dict[str, object] = {}
        try:
            values = json.loads(regular_files.read_regular(self._path, _MAX_PROGRESS_BYTES))
            if values["fingerprint"] == self._fingerprint:
                noted = dict(values["finished"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # no progress to take over: start anew
        for plan in plans:
            path = directory / plan.file
            if plan.file in noted and _is_file_of(path, plan.nbytes):
                found = hash_file(path)
                if found.sha256 == noted[plan.file]:
                    self.finished[plan.file] = found
        self._path.unlink(missing_ok=True)
        for path in directory.glob(SHARD_PATTERN):
            if path.name not in self.finished:
                path.unlink()
        if self.finished:
            self._save()

    def note(self, file: str, hashes: FileHash) -> None:
        """Note a finished shard."""
        self.finished[file] = hashes
        self._save()

    def _save(self) -> None:
        values = {
            "fingerprint": self._fingerprint,
            "finished": {name: item.sha256 for name, item in self.finished.items()},
        }
        new = self._path.with_suffix(".new")
        regular_files.write_new(new, json.dumps(values).encode())
        replace_file(new, self._path)


class _ShardFiles:
    """The shards that are being written: opened at their first block, hashed after their last."""

    def __init__(self, directory: Path, plans: Sequence[ShardPlan], progress: Progress) -> None:
        self._directory = directory
        self._progress = progress
        self._places = {
            record.name: (plan, record.byte_offset) for plan in plans for record in plan.records
        }
        self._open: dict[str, tuple[int, int]] = {}  # descriptor, bytes still to come

    def is_finished(self, tensor: StoredTensor) -> bool:
        return self._places[tensor.name][0].file in self._progress.finished

    def write(self, tensor: StoredTensor, offset_bytes: int, data: memoryview) -> None:
        plan, begin = self._places[tensor.name]
        path = self._directory / plan.file
        if plan.file not in self._open:
            with regular_files.open_new(path, exclusive=True) as file:
                descriptor = os.dup(file.fileno())
            self._open[plan.file] = (descriptor, plan.tensor_bytes)
            os.ftruncate(descriptor, plan.nbytes)
        descriptor, missing = self._open[plan.file]
        position, rest = begin + offset_bytes, data
        while rest:
            count = write_at(descriptor, rest, position)
            position, rest = position + count, rest[count:]
        self._open[plan.file] = (descriptor, missing - len(data))
        if missing == len(data):
            del self._open[plan.file]
            os.close(descriptor)
            self._progress.note(plan.file, hash_file(path))

    def close(self) -> None:
        for descriptor, _ in self._open.values():
            os.close(descriptor)


@dataclass(frozen=True)
class WrittenWeights:
    """The tensor caches of model and drafter, and the hashes of each shard by file name."""

    cache: TensorCache
    hashes: Mapping[str, Listed]
    drafter: TensorCache | None = None


def write_weights(
    directory: Path,
    plan: Sequence[StoredParameter],
    read_rows: RowReader,
    fingerprint: str,
    progress: ByteProgress,
    drafter: Sequence[StoredParameter] = (),
    shard_bytes: int = SHARD_BYTES,
    held: StoredReaders = MappingProxyType({}),
) -> WrittenWeights:
    """Convert all parameters on all cores, and write their shards.

    Parameters
    ----------
    directory : of this run; what an earlier run with another fingerprint left there is removed
    read_rows : called from several threads
    fingerprint : identifies weights, recipe and code: equal means equal bytes
    progress : is given the stored bytes as they are written (or found finished)
    drafter : parameters with shards and a list of their own
    shard_bytes : of a shard at most, but of one with a single larger tensor
    held : what is written as it is, see `ConversionStep.run`

    Raises
    ------
    ArtifactError
        If the disk is full or cannot be written.
    """
    own: tuple[ShardPlan, ...] = ()
    if drafter:
        own = plan_shards((one for stored in drafter for one in stored.tensors), shard_bytes)
    own = tuple(replace(s, file=s.file.replace(_SHARD, abi.DRAFTER_SHARD)) for s in own)
    mine = (tensor for stored in plan for tensor in stored.tensors)
    shards = (*plan_shards(mine, shard_bytes), *own)
    plan_of_all = (*plan, *drafter)
    tensors = [tensor for stored in plan_of_all for tensor in stored.tensors]
    noted = Progress(directory, fingerprint)
    with write_errors(directory):
        noted.load(shards)
        _check_space(directory, [shard for shard in shards if shard.file not in noted.finished])
    files = _ShardFiles(directory, shards, noted)
    open_tensors = {tensor.name for tensor in tensors if not files.is_finished(tensor)}
    progress(sum(tensor.nbytes for tensor in tensors if tensor.name not in open_tensors))

    def is_open(part: RowSplit) -> bool:
        return any(tensor.name in open_tensors for tensor in part.tensors)

    def run(step: ConversionStep) -> tuple[StoredBlock, ...]:
        return step.run(read_rows, held)

    steps = (step for stored in plan_of_all for step in conversion_steps(stored, is_open))
    try:
        with contextlib.closing(in_order(run, steps)) as converted:
            for block in itertools.chain.from_iterable(converted):
                if block.tensor.name in open_tensors:
                    with write_errors(directory):
                        files.write(block.tensor, block.offset_bytes, block.data.data.cast("B"))
                    progress(block.data.nbytes)
    finally:
        files.close()

    def cache_of(written: Sequence[ShardPlan], stored: Sequence[StoredParameter]) -> TensorCache:
        entries = (Shard(s.file, s.nbytes, noted.finished[s.file].md5, s.records) for s in written)
        count = sum(math.prod(one.parameter.shape) for one in stored)
        return TensorCache(tuple(entries), parameter_count=count)

    main = shards[: len(shards) - len(own)]
    return WrittenWeights(
        cache_of(main, plan),
        {name: item.listed for name, item in noted.finished.items()},
        cache_of(own, drafter) if drafter else None,
    )


def _check_space(directory: Path, shards: Sequence[ShardPlan]) -> None:
    needed, free = sum(shard.nbytes for shard in shards), shutil.disk_usage(directory).free
    if needed > free:
        raise ArtifactError(
            f"no space left on the device: the weights need {needed} bytes more, {free} are free",
            hint="free some space, or choose an -o on another disk",
        )


def _is_file_of(path: Path, nbytes: int) -> bool:
    """Return whether a regular file of this size is there."""
    try:
        found = path.lstat()
        regular_files.check_regular(found)
    except OSError:
        return False
    return found.st_size == nbytes

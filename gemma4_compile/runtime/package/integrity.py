"""Integrity of a package: its files against the hashes that `provenance.json` lists.

This finds damage and mixed-up files. It does not show who made a package: whoever can change a file
can change the list, too, so a package is to be trusted as a program is (docs/security.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.settings import media_settings
from gemma4_compile.package.artifacts import (
    ChatConfig,
    Provenance,
    Shard,
    TensorCache,
    parameter_schema_id,
    read_artifact,
)
from gemma4_compile.package.interface import DRAFTER, embeds, interface_id, tasks
from gemma4_compile.runtime.package.checked_parts import parts_of
from gemma4_compile.runtime.package.drafter_files import (
    HINT,
    hint_for,
    is_of_drafter,
    without_drafter,
)
from gemma4_compile.system.regular_files import (
    MAX_JSON_BYTES,
    MAX_TOKENIZER_BYTES,
    check_regular,
    open_regular,
)

# Files that the runtime reads where they are, and how large they may be; none may lie there that
# the package does not list.
_log = logging.getLogger(__name__)

_READ_FILES: Mapping[str, int] = {
    abi.CHAT_CONFIG_FILE: MAX_JSON_BYTES,
    abi.TENSOR_CACHE_FILE: MAX_JSON_BYTES,
    abi.DRAFTER_CACHE_FILE: MAX_JSON_BYTES,
    abi.MANIFEST_FILE: MAX_JSON_BYTES,
    "tokenizer.json": MAX_TOKENIZER_BYTES,
    "tokenizer_config.json": MAX_JSON_BYTES,
    "chat_template.jinja": MAX_JSON_BYTES,
    "generation_config.json": MAX_JSON_BYTES,
}
MAX_LIBRARY_BYTES = 1 << 30  # those of the released sizes have some tens of MB
MAX_WEIGHT_BYTES = 1 << 38  # of all shards; 31B in float32 has 125 GB
_NEEDED_FILES = (abi.CHAT_CONFIG_FILE, abi.TENSOR_CACHE_FILE, abi.MANIFEST_FILE)
_LIBRARY_SUFFIXES = (".wasm", ".so", ".dylib")
_BLOCK_BYTES = 1 << 20
_MIXED = "library and weights are from different builds: compile both again"

ByteCount = Callable[[int, int], None]
"""Is given how many bytes are done, and how many there are."""


class DamagedFileError(ArtifactError):
    """A file of a package is not what the package lists.

    Attributes
    ----------
    file : its name
    """

    def __init__(self, message: str, *, file: str) -> None:
        super().__init__(message, hint=hint_for(file))
        self.file = file


class Check(str, Enum):
    """When files are hashed. Sizes, names and metadata are held together in any case but OFF."""

    ONCE = "once"  # and again when a file's size, time or number changes
    ALWAYS = "always"
    OFF = "off"  # for packages whose files are changed on purpose


def check_files(
    directory: Path,
    provenance: Provenance,
    check: Check,
    progress: ByteCount = lambda done, total: None,
    *,
    drafter: bool = True,
) -> None:
    """Hold a package's files against its list; those that are read are hashed, the others not.

    What costs nothing comes first: that every file is a regular one (a pipe would never end) and of
    the listed size, and that what is to be hashed is no larger than its kind can be.

    Parameters
    ----------
    progress : is given how much is hashed, if anything is
    drafter : the drafter's files are read, too

    Raises
    ------
    ArtifactError
        If a file is missing, no file, not listed, too large, or of another size or hash; the
        message names it.
    """
    if check is Check.OFF:
        return
    provenance = provenance if drafter else without_drafter(provenance)
    caches = _tensor_caches(provenance)
    wanted = (name for name in _READ_FILES if drafter or not is_of_drafter(name))
    there = (name for name in wanted if os.path.lexists(directory / name))
    for name in (*_NEEDED_FILES, *caches, *there):
        if name not in provenance.files:
            raise ArtifactError(
                f"`{abi.PROVENANCE_FILE}` of `{directory}` does not list `{name}`", hint=HINT
            )
    stats = check_sizes(directory, provenance)
    limits = {name: limit for name, limit in _READ_FILES.items() if name in stats}
    if provenance.library is not None:
        limits[provenance.library] = MAX_LIBRARY_BYTES
    for name, limit in limits.items():
        if stats[name].st_size > limit:
            raise ArtifactError(
                f"`{name}` of `{directory}` is too large: {stats[name].st_size} bytes, at most "
                f"{limit}",
                hint=HINT,
            )
    parts = parts_of(directory, provenance, stats)
    unknown = [one for one in parts if check is not Check.ONCE or not one.is_known()]
    # Tensor caches list which shards there are, so they are the first to be trusted.
    first = caches if any(one.is_shared for one in unknown) else ()
    for name in first:
        _check_hash(directory, name, provenance, lambda count: None)
    read = list(first)
    for one in unknown:
        if one.is_shared:
            shared = [name for name in limits if name not in (*caches, provenance.library)]
            read += [*shared, *_listed_shards(directory, provenance, caches)]
        else:
            read += one.stats
    total, done = sum(stats[name].st_size for name in read), 0
    _log.info("files of `%s` to hash: %d, %d bytes; others are known", directory, len(read), total)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    if first:
        advance(sum(stats[name].st_size for name in first))
    for name in read:
        if name not in first:
            _check_hash(directory, name, provenance, advance)
    for one in unknown:
        one.keep()


def check_sizes(directory: Path, provenance: Provenance) -> dict[str, os.stat_result]:
    """Return what the file system says of every listed file.

    ArtifactError if one is missing, no regular file or of another size than is listed.
    """
    stats = {}
    for name, (nbytes, _) in provenance.files.items():
        try:
            stats[name] = (directory / name).stat()
        except OSError as error:
            raise ArtifactError(
                f"`{name}` is missing from `{directory}`: {error.strerror}", hint=hint_for(name)
            ) from error
        try:
            check_regular(stats[name])
        except OSError as error:
            raise ArtifactError(
                f"cannot use `{name}` of `{directory}`: {error.strerror}", hint=hint_for(name)
            ) from error
        if stats[name].st_size != nbytes:
            raise DamagedFileError(
                f"`{name}` of `{directory}`: expected {nbytes} bytes, found {stats[name].st_size}",
                file=name,
            )
    return stats


def file_limit(name: str) -> int:
    """How large a file of a package can be, in bytes."""
    if name.endswith(_LIBRARY_SUFFIXES):
        return MAX_LIBRARY_BYTES
    return _READ_FILES.get(name, MAX_WEIGHT_BYTES if name.endswith(".bin") else MAX_JSON_BYTES)


def _tensor_caches(provenance: Provenance) -> tuple[str, ...]:
    """Lists of weights: the model's, and the drafter's of a package with one."""
    own = (abi.DRAFTER_CACHE_FILE,) if DRAFTER in provenance.build else ()
    return abi.TENSOR_CACHE_FILE, *own


def _listed_shards(directory: Path, provenance: Provenance, caches: Sequence[str]) -> list[str]:
    """The shards of the tensor caches, whose sizes are those of their tensors."""
    shards: list[Shard] = []
    for name in caches:
        cache = TensorCache.from_json(read_artifact(directory / name), name)
        _check_shards(cache, provenance, name)
        shards += cache.shards
    for shard in shards:
        if shard.file not in provenance.files:
            raise ArtifactError(
                f"`{abi.PROVENANCE_FILE}` of `{directory}` does not list `{shard.file}`", hint=HINT
            )
    total = sum(shard.nbytes for shard in shards)
    if total > MAX_WEIGHT_BYTES:
        raise ArtifactError(
            f"the weights of `{directory}` are too large: {total} bytes, at most "
            f"{MAX_WEIGHT_BYTES}",
            hint=HINT,
        )
    return [shard.file for shard in shards]


def hash_files(
    directory: Path, provenance: Provenance, advance: Callable[[int], None] = lambda count: None
) -> None:
    """Hold every listed file against its size and hash; ArtifactError names one that differs."""
    check_sizes(directory, provenance)
    for name in provenance.files:
        _check_hash(directory, name, provenance, advance)


def _check_hash(
    directory: Path, name: str, provenance: Provenance, advance: Callable[[int], None]
) -> None:
    nbytes, sha256 = provenance.files[name]
    if _hash(directory / name, nbytes, advance) != sha256:
        raise DamagedFileError(
            f"`{name}` of `{directory}` is damaged: its sha256 is not what "
            f"`{abi.PROVENANCE_FILE}` lists",
            file=name,
        )


def _hash(path: Path, nbytes: int, advance: Callable[[int], None]) -> str:
    """The hash of a file, read no further than a byte behind what it should have: it may grow."""
    digest, left = hashlib.sha256(), nbytes + 1
    try:
        with open_regular(path) as file:
            while block := file.read(min(_BLOCK_BYTES, left)):
                digest.update(block)
                left -= len(block)
                advance(len(block))
    except OSError as error:
        raise ArtifactError(
            f"cannot read `{path}`: {error.strerror}", hint="check the file's permissions"
        ) from error
    return digest.hexdigest()


def check_manifest(
    manifest: Mapping[str, object], cache: TensorCache, provenance: Provenance
) -> None:
    """Compare the manifest's digests with the tensors, and the shards against the list.

    Raises
    ------
    ArtifactError
        If they do not fit together.
    """
    tensors = [record for shard in cache.shards for record in shard.records]
    weights = manifest.get("weights")
    found = weights.get("parameter_schema_id") if isinstance(weights, Mapping) else None
    if found != parameter_schema_id(tensors):
        raise ArtifactError(
            f"`{abi.MANIFEST_FILE}` is of other weights than `{abi.TENSOR_CACHE_FILE}`: their "
            "names, shapes or dtypes differ",
            hint=_MIXED,
        )
    if manifest.get("interface_id") != _interface_of(provenance.build):
        raise ArtifactError(
            f"`{abi.MANIFEST_FILE}` has another interface than this program", hint=_MIXED
        )
    _check_shards(cache, provenance)


def _interface_of(described: Mapping[str, object]) -> str:
    """The interface that metadata, or a provenance's `build`, are of."""
    return interface_id(tasks(media_settings(described), embeds=embeds(described)))


def _check_shards(
    cache: TensorCache, provenance: Provenance, file: str = abi.TENSOR_CACHE_FILE
) -> None:
    for shard in cache.shards:
        listed = provenance.files.get(shard.file)
        if listed is not None and listed[0] != shard.nbytes:
            raise ArtifactError(
                f"`{shard.file}`: `{file}` lists {shard.nbytes} bytes, "
                f"`{abi.PROVENANCE_FILE}` lists {listed[0]}",
                hint=HINT,
            )


def _check_parameters(params: list[tuple[str, tuple[int, ...], str]], cache: TensorCache) -> None:
    tensors = {r.name: (r.shape, r.dtype) for shard in cache.shards for r in shard.records}
    for name, shape, dtype in params:
        if tensors.get(name) != (shape, dtype):
            raise ArtifactError(
                f"weight `{name}`: the library expects {(shape, dtype)}, the package has "
                f"{tensors.get(name)}",
                hint=_MIXED,
            )


def drafter_parameters(metadata: str, cache: TensorCache) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of what a library takes for its drafter, in its order.

    Raises
    ------
    ArtifactError
        If the library is of another build than the drafter's weights.
    """
    try:
        values = json.loads(metadata)[DRAFTER]["params"]
        params = [(p["name"], tuple(p["shape"]), p["dtype"]) for p in values]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"the library's metadata has no drafter, which the package lists: {error!r}",
            hint=_MIXED,
        ) from error
    _check_parameters(params, cache)
    return params


def library_parameters(
    metadata: str, chat: ChatConfig, cache: TensorCache
) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of what a library takes, in its order.

    Parameters
    ----------
    metadata : what the library's `_metadata` returns

    Raises
    ------
    ArtifactError
        If the library is of another build than configs and weights.
    """
    try:
        values = json.loads(metadata)
        params = [(p["name"], tuple(p["shape"]), p["dtype"]) for p in values["params"]]
        artifact = values["artifact"]
        found = {
            "interface": artifact["interface_id"],
            "parameter schema": artifact["parameter_schema_id"],
            "context length": values["context_window_size"],
            "prefill chunk": values["prefill_chunk_size"],
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"the library's metadata is damaged: {error!r}", hint=_MIXED) from error
    _check_parameters(params, cache)
    expected = {
        "interface": _interface_of(values),
        "parameter schema": parameter_schema_id([r for s in cache.shards for r in s.records]),
        "context length": chat.context_window_size,
        "prefill chunk": chat.prefill_chunk_size,
    }
    for what, value in expected.items():
        if found[what] != value:
            raise ArtifactError(
                f"the library and the package do not fit together: {what} is {found[what]}, "
                f"expected {value}",
                hint=_MIXED,
            )
    return params

"""Whether a package is whole: its files against the hashes that `provenance.json` lists.

This finds damage and mixed-up files. It does not tell who made a package: whoever can change a file
can change the list, too, so a package is to be trusted as a program is (docs/security.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from gemma4_compile import abi
from gemma4_compile.artifacts import (
    ChatConfig,
    Provenance,
    TensorCache,
    interface_id,
    parameter_schema_id,
)
from gemma4_compile.errors import ArtifactError

# Files that the runtime reads where they are; none may lie there that the package does not list.
_READ_FILES = (
    abi.CHAT_CONFIG_FILE,
    abi.TENSOR_CACHE_FILE,
    abi.MANIFEST_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_NEEDED_FILES = (abi.CHAT_CONFIG_FILE, abi.TENSOR_CACHE_FILE, abi.MANIFEST_FILE)
_CACHE_FOLDER = "checked-packages"
_BLOCK_BYTES = 1 << 20
MOST_REMEMBERED = 500  # checked packages
_HINT = "fetch or compile the package again; for files that you changed yourself: --check off"
_MIXED = "library and weights are from different builds: compile both again"

ByteCount = Callable[[int, int], None]
"""Is told how many bytes are done, and how many there are."""

_checked_here: set[str] = set()  # signatures that this process has checked


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
) -> None:
    """Hold a package's files against its list.

    Parameters
    ----------
    progress : is told how much is hashed, if anything is

    Raises
    ------
    ArtifactError
        If a file is missing, not listed, or of another size or hash; the message names it.
    """
    if check is Check.OFF:
        return
    for name in (*_NEEDED_FILES, *(n for n in _READ_FILES if (directory / n).exists())):
        if name not in provenance.files:
            raise ArtifactError(
                f"`{abi.PROVENANCE_FILE}` of `{directory}` does not list `{name}`", hint=_HINT
            )
    stats = {}
    for name, (nbytes, _) in provenance.files.items():
        try:
            stats[name] = (directory / name).stat()
        except OSError as error:
            raise ArtifactError(
                f"`{name}` is missing from `{directory}`: {error.strerror}", hint=_HINT
            ) from error
        if stats[name].st_size != nbytes:
            raise ArtifactError(
                f"`{name}` of `{directory}`: expected {nbytes} bytes, found {stats[name].st_size}",
                hint=_HINT,
            )
    signature = _signature(directory, provenance, stats)
    if check is Check.ONCE and (signature in _checked_here or _remembered(directory, signature)):
        return
    total, done = sum(stat.st_size for stat in stats.values()), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    for name, (_, sha256) in provenance.files.items():
        if _hash(directory / name, advance) != sha256:
            raise ArtifactError(
                f"`{name}` of `{directory}` is damaged: its sha256 is not what "
                f"`{abi.PROVENANCE_FILE}` lists",
                hint=_HINT,
            )
    _checked_here.add(signature)
    _remember(directory, signature)


def _hash(path: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                advance(len(block))
    except OSError as error:
        raise ArtifactError(
            f"cannot read `{path}`: {error.strerror}", hint="check the file's permissions"
        ) from error
    return digest.hexdigest()


def _signature(directory: Path, provenance: Provenance, stats: Mapping[str, os.stat_result]) -> str:
    """What changes when a file is replaced or written to."""
    files = [
        [name, stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev]
        for name, stat in stats.items()
    ]
    text = json.dumps([str(directory.resolve()), files, provenance.to_json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cache_folder() -> Path:
    """Where this user's machine keeps what can be made again."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "gemma4_compile"


def _memory(directory: Path) -> Path:
    """The file that holds the signature of a checked package."""
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()
    return cache_folder() / _CACHE_FOLDER / name


def _remembered(directory: Path, signature: str) -> bool:
    try:
        return _memory(directory).read_text("ascii") == signature
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home directory
        return False


def _remember(directory: Path, signature: str) -> None:
    """Note a checked package; where that cannot be written, it is checked again next time."""
    try:
        path = _memory(directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(signature)
        Path(new).replace(path)
        _forget_old(path.parent)
    except (OSError, RuntimeError):
        return


def _forget_old(folder: Path) -> None:
    """Keep the memory small: packages come and go."""
    notes = list(folder.iterdir())
    if len(notes) > MOST_REMEMBERED:
        notes.sort(key=lambda note: note.stat().st_mtime_ns)
        for note in notes[: len(notes) // 2]:
            note.unlink(missing_ok=True)


def check_manifest(manifest: Mapping[str, Any], cache: TensorCache, provenance: Provenance) -> None:
    """Hold the manifest's identities against the tensors, and the shards against the list.

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
    if manifest.get("interface_id") != interface_id():
        raise ArtifactError(
            f"`{abi.MANIFEST_FILE}` has another interface than this program", hint=_MIXED
        )
    for shard in cache.shards:
        listed = provenance.files.get(shard.file)
        if listed is not None and listed[0] != shard.nbytes:
            raise ArtifactError(
                f"`{shard.file}`: `{abi.TENSOR_CACHE_FILE}` says {shard.nbytes} bytes, "
                f"`{abi.PROVENANCE_FILE}` says {listed[0]}",
                hint=_HINT,
            )


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
    tensors = {r.name: (r.shape, r.dtype) for shard in cache.shards for r in shard.records}
    for name, shape, dtype in params:
        if tensors.get(name) != (shape, dtype):
            raise ArtifactError(
                f"weight `{name}`: the library expects {(shape, dtype)}, the package has "
                f"{tensors.get(name)}",
                hint=_MIXED,
            )
    expected = {
        "interface": interface_id(),
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

"""The safetensors files of a checkpoint's directory: one, or those that its index lists."""

from __future__ import annotations

import re
from pathlib import Path

from gemma4_compile.checkpoint.files import INDEX_FILE, SINGLE_FILE, check_place, read_json
from gemma4_compile.checkpoint.kinds import Listing, folder_names, no_weights
from gemma4_compile.checkpoint.safetensors_file import MAX_TENSORS, TensorInfo, read_header
from gemma4_compile.checkpoint.same_weights import holds_same
from gemma4_compile.errors import CheckpointError

MAX_SHARDS = 4096
# Names that start with no dot lead to no other folder than those below.
_RELATIVE = re.compile(r"(?:\w[\w.\- ]*/){0,8}\w[\w.\- ]*", re.ASCII)


def open_tensors(path: Path) -> dict[str, TensorInfo]:
    """Read the headers of a directory's tensors: CheckpointError as of `Checkpoint.open`."""
    if (path / SINGLE_FILE).exists():
        check_place(path / SINGLE_FILE)
        return read_header(path / SINGLE_FILE)
    if (path / INDEX_FILE).exists():
        return _open_shards(path)
    raise no_weights(listing(path))


def listing(path: Path) -> Listing:
    """What a directory holds, to say what it is where it is no checkpoint."""
    return Listing(str(path), folder_names(path), lambda name: read_json(path / name))


def shard_files(index: Path) -> dict[str, str]:
    """The files that an index places the tensors in, by tensor; `/` parts folders.

    Raises
    ------
    CheckpointError
        If the index is damaged, or names what is no safetensors file below its directory.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"`{INDEX_FILE}` is damaged: no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _RELATIVE.fullmatch(file.removeprefix("./")):
            raise CheckpointError(
                f"`{INDEX_FILE}` places tensor `{name}` in {file!r}: not a plain file name"
            )
        if not file.endswith(".safetensors"):
            raise CheckpointError(
                f"`{INDEX_FILE}` places tensor `{name}` in `{file}`: only safetensors are read"
            )
    count = len(set(weight_map.values()))
    if count > MAX_SHARDS:
        raise CheckpointError(f"`{INDEX_FILE}` names {count} shards, at most {MAX_SHARDS}")
    return {name: file.removeprefix("./") for name, file in weight_map.items()}


def _open_shards(path: Path) -> dict[str, TensorInfo]:
    weight_map = shard_files(path / INDEX_FILE)
    files = sorted(set(weight_map.values()))
    missing = [file for file in files if not (path / file).is_file()]
    if missing:
        raise CheckpointError(
            f"shard `{missing[0]}` is missing ({len(missing)} of {len(files)} are)",
            hint="download the whole checkpoint again",
        )
    shards: list[dict[str, TensorInfo]] = []
    count = 0
    for file in files:
        check_place(path / file, path)
        shards.append(read_header(path / file))
        count += len(shards[-1])
        if count > MAX_TENSORS:
            raise CheckpointError(f"`{path}` lists more than {MAX_TENSORS} tensors")
    # As in transformers the files say what is in them. What is listed and not there, such as a tied
    # head, is missed only where a model needs it.
    found: dict[str, TensorInfo] = {}
    for tensors in shards:
        for name, tensor in tensors.items():
            if name in found and not holds_same(found[name], tensor):
                raise CheckpointError(
                    f"tensor `{name}` is in `{found[name].path.name}` and in `{tensor.path.name}`, "
                    "with different values",
                    hint=f"remove the shards of the older of two saved models, with {INDEX_FILE} "
                    "of the newer one",
                )
            found.setdefault(name, tensor)
    return found

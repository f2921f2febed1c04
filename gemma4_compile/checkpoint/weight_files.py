"""The safetensors files of a checkpoint's directory: one, or those that its index lists."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.checkpoint.files import INDEX_FILE, SINGLE_FILE, check_place, read_json
from gemma4_compile.checkpoint.kinds import Listing, folder_names, no_weights
from gemma4_compile.checkpoint.safetensors_file import MAX_TENSORS, TensorInfo, read_header
from gemma4_compile.checkpoint.same_weights import holds_same
from gemma4_compile.errors import CheckpointError

MAX_SHARDS = 4096
_MAX_FOLDERS, _MAX_LETTERS = 8, 1024  # of a shard's name
_SUFFIX = ".safetensors"
_SAVE_AGAIN = "save the model again, with save_pretrained"


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


def _is_below(file: str) -> bool:
    """Return whether a name is that of a file in this folder or below, on every system."""
    parts = file.split("/")
    # Names that start with no dot lead to no other folder than those below.
    return (
        len(file) <= _MAX_LETTERS
        and len(parts) <= _MAX_FOLDERS + 1
        and file.isprintable()
        and not set("\\:*?") & set(file)
        and all(part and not part.startswith(".") for part in parts)
    )


def shard_files(index: Path) -> dict[str, str]:
    """The files that an index places the tensors in, by tensor; `/` parts folders.

    Raises
    ------
    CheckpointError
        If the index is damaged, or names what is no safetensors file below its directory.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"`{INDEX_FILE}` is damaged: expected `weight_map`, files by tensor",
            hint=f"download it again, or {_SAVE_AGAIN}",
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_below(file.removeprefix("./")):
            raise CheckpointError(
                f"`{INDEX_FILE}` places tensor `{name}` in {str(file)[:_MAX_LETTERS]!r}: not a "
                "plain file name",
                hint="put the shards beside the index, and write their names alone into it",
            )
        if not file.endswith(_SUFFIX):
            raise CheckpointError(
                f"`{INDEX_FILE}` places tensor `{name}` in `{file}`: only safetensors are read",
                hint=f"name it {file[: -len(_SUFFIX)]}{_SUFFIX}, in the index too"
                if file.lower().endswith(_SUFFIX)
                else f"load it with transformers, if you trust it, and {_SAVE_AGAIN}",
            )
    count = len(set(weight_map.values()))
    if count > MAX_SHARDS:
        raise CheckpointError(
            f"`{INDEX_FILE}` names {count} shards, at most {MAX_SHARDS}", hint=_SAVE_AGAIN
        )
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
            raise CheckpointError(
                f"`{path}` lists more than {MAX_TENSORS} tensors",
                hint="it is no Gemma 4: the largest released one has some thousands",
            )
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

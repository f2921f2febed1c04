"""A model in GGUF as a checkpoint, whose other files are written into a directory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.checkpoint import hub
from gemma4_compile.checkpoint.files import TOKENIZER_FILE
from gemma4_compile.checkpoint.gguf.directory import (
    copy_tokenizer,
    write_configs,
    write_rebuilt,
    write_vocabulary,
)
from gemma4_compile.checkpoint.gguf.files import towers_beside
from gemma4_compile.checkpoint.gguf.model import GGUFModel, open_model
from gemma4_compile.checkpoint.gguf.names import DRAFTER, TARGET
from gemma4_compile.checkpoint.hub_id import is_hub_id
from gemma4_compile.checkpoint.match import Checkpoint, read_generation_config
from gemma4_compile.errors import CheckpointError, UsageError, printable
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.options.process import warn

KIND = "gguf"
"""Of a model, in provenance."""
TOKENIZER_ENTRY = "tokenizer"
"""Of provenance: where the tokenizer is from, if it is not the file's own."""
FROM_DIRECTORY = "directory"
TOKENIZER_OPTION = "--tokenizer"
_SHOWN_LETTERS = 80


@dataclass(frozen=True)
class Tokenizer:
    """Whether a tokenizer is wanted, and the directory or hub id that is given for it."""

    is_wanted: bool
    given: str | None = None


NO_TEXTS = Tokenizer(is_wanted=False)


def open_gguf(
    path: Path, directory: Path, tokenizer: Tokenizer, found: Path | None
) -> tuple[GGUFModel, dict[str, object]]:
    """Open a model and write its other files; returns it with its entry of provenance.

    Parameters
    ----------
    found : the path that the given tokenizer would be

    Raises
    ------
    CheckpointError
        If a file is damaged, not supported, or there is no whole tokenizer.
    """
    model = open_model(path, TARGET)
    write_configs(model, directory)
    origin: dict[str, object] = {"kind": KIND, "file": model.where}
    if tokenizer.is_wanted:
        origin |= _write_tokenizer(model, path, directory, tokenizer.given, found)
    return model, origin


def open_drafter_gguf(path: Path, directory: Path) -> tuple[GGUFModel, dict[str, object]]:
    """Open a drafter and write its config and its tokens, with its entry of provenance.

    Raises
    ------
    CheckpointError
        As `open_gguf`.
    """
    model = open_model(path, DRAFTER)
    write_configs(model, directory)
    write_vocabulary(model, directory)
    return model, {"kind": KIND, "file": model.where}


def checkpoint_of(model: GGUFModel, directory: Path) -> Checkpoint:
    """The model as a checkpoint; its other files are in the directory."""
    return Checkpoint(directory, model.config, read_generation_config(directory), model.tensors)


def check_modalities(path: Path, modalities: Collection[Modality] | None) -> None:
    """Refuse pictures and sounds, which are not read; say so where all is asked for.

    Raises
    ------
    UsageError
        If they are asked for by name.
    """
    if modalities is not None and set(modalities) != TEXT_ONLY:
        raise UsageError(
            f"--modalities: of `{path}` the text decoder is read alone",
            hint="leave it out, or give the safetensors checkpoint for pictures and sounds",
        )
    towers = towers_beside(path)
    if modalities is None and towers is not None:
        warn(
            f"`{printable(towers[:_SHOWN_LETTERS])}` of `{path}` is not read: the package takes "
            "text alone",
            "give the safetensors checkpoint for pictures and sounds",
        )


def _write_tokenizer(
    model: GGUFModel, path: Path, directory: Path, given: str | None, found: Path | None
) -> dict[str, object]:
    """Write the tokenizer that is given, or is beside the file, or the file's own."""
    if given is None or found is None:
        if not (path / TOKENIZER_FILE).is_file():
            write_rebuilt(model, directory)
            return {}
        copy_tokenizer(model, path, directory)
        return {TOKENIZER_ENTRY: "beside the model"}
    if found.is_dir():
        copy_tokenizer(model, found, directory)
        return {TOKENIZER_ENTRY: FROM_DIRECTORY}
    hub_id, _, revision = (given or "").partition("@")
    if found.exists() or not is_hub_id(hub_id):
        raise CheckpointError(
            f"{TOKENIZER_OPTION}: there is no `{given}`: no such directory, and no hub id",
            hint="give a directory with tokenizer.json, or a hub id like google/gemma-4-E2B-it",
        )
    snapshot = hub.fetch_tokenizer(hub_id, revision or None)
    copy_tokenizer(model, snapshot, directory)
    return {TOKENIZER_ENTRY: f"{hub_id}@{snapshot.name}"}

"""A drafter's checkpoint: found as a model's is, held against its target, its tensors matched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gemma4_compile import tiny
from gemma4_compile.checkpoint import hub
from gemma4_compile.checkpoint.files import CONFIG_FILE, TOKENIZER_FILE, read_json
from gemma4_compile.checkpoint.gguf.files import is_model
from gemma4_compile.checkpoint.gguf.opening import checkpoint_of, open_drafter_gguf
from gemma4_compile.checkpoint.hub_id import is_hub_id
from gemma4_compile.checkpoint.input_files import Files, checkpoint_files
from gemma4_compile.checkpoint.loaded_dtype import loaded_dtype
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.match import Checkpoint, is_beyond, match, row_reader, vocabulary_of
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.checkpoint.sources import (
    TINY,
    refuse_others,
    refuse_package,
    warn_of_unknown,
)
from gemma4_compile.errors import CheckpointError, ConfigError
from gemma4_compile.model_spec.config.drafter import DrafterConfig, read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.component import DRAFTER
from gemma4_compile.model_spec.drafter.layer_plan import check_fit
from gemma4_compile.model_spec.drafter.parameters import ORDERING, STEM
from gemma4_compile.system import regular_files
from gemma4_compile.system.files import scratch_folder
from gemma4_compile.system.regular_files import MAX_TOKENIZER_BYTES

OPTION = "--drafter"


@dataclass(frozen=True)
class DrafterSource:
    """Source of a drafter, and its checked config, which fits the target's.

    Attributes
    ----------
    origin : its entry in provenance; no paths of this machine
    checkpoint : None when only the config was asked for
    files : what is read of it
    """

    origin: Mapping[str, object]
    config: DrafterConfig
    checkpoint: Checkpoint | None
    files: Files = field(default_factory=dict)


@contextlib.contextmanager
def open_drafter(
    model: str | None, target: Gemma4Config, *, weights: bool, revision: str | None = None
) -> Iterator[DrafterSource | None]:
    """Open the drafter of a target, None where none is named; `weights` False reads its config.

    Parameters
    ----------
    model : hub id, `ID@REVISION`, directory, GGUF file, or `tiny` for the drafter that ships,
        whatever directory has its name
    revision : of the hub, where `model` has none

    Raises
    ------
    CheckpointError, ConfigError
        If there is no such drafter, it is damaged, or it does not fit the target.
    """
    hub_id, _, pinned = (model or "").partition("@")
    if model is not None and target.gemma3n is not None:
        raise ConfigError(
            "--drafter: a drafter of Gemma 4 drafts for Gemma 4 alone, and this model is Gemma 3n",
            hint="leave it out: there is no drafter of Gemma 3n",
        )
    if model is None:
        yield None
    elif model == TINY:
        with scratch_folder(prefix="gemma4-tiny-") as directory:
            tiny.materialize_drafter(Path(directory))
            yield _opened(Path(directory), {"kind": TINY}, _read_tiny, target, weights=weights)
    elif (path := local_path(model)).exists() and is_model(path):
        with scratch_folder(prefix="gemma4-gguf-") as directory:
            yield _from_gguf(path, Path(directory), target, weights=weights)
    elif path.exists():
        with _named():
            refuse_package(path, "the drafter's own checkpoint")
            refuse_others(path, weights=weights)
        yield _opened(path, {"kind": "directory"}, _read_config, target, weights=weights)
    elif is_hub_id(hub_id):
        with _named():
            path = hub.fetch_config(hub_id, pinned or revision)
        config = _read_config(path, target)  # before it is downloaded
        origin = {"kind": "hub", "model": hub_id, "revision": path.name}
        with _named():
            path = hub.fetch(hub_id, path.name) if weights else path
        yield _source(path, origin, config, weights=weights)
    else:
        raise CheckpointError(
            f"{OPTION}: there is no `{model}`: no such directory, and no hub id",
            hint="give a directory, a hub id like google/gemma-4-E2B-it-assistant, or "
            f"`{TINY}` with the model `{TINY}`",
        )


def _opened(
    path: Path,
    origin: Mapping[str, object],
    read: Callable[[Path, Gemma4Config], DrafterConfig],
    target: Gemma4Config,
    *,
    weights: bool,
) -> DrafterSource:
    return _source(path, origin, read(path, target), weights=weights)


def _from_gguf(
    path: Path, directory: Path, target: Gemma4Config, *, weights: bool
) -> DrafterSource:
    with _named():
        found, origin = open_drafter_gguf(path, directory)
    config = _read_config(directory, target)
    checkpoint = checkpoint_of(found, directory) if weights else None
    files = {**checkpoint_files(directory, None), **(found.files if weights else {})}
    return DrafterSource(origin, config, checkpoint, files)


def _source(
    path: Path, origin: Mapping[str, object], config: DrafterConfig, *, weights: bool
) -> DrafterSource:
    with _named():
        checkpoint = Checkpoint.open(path, f"{OPTION}: ") if weights else None
        config = replace(config, dtype=loaded_dtype(path, config.dtype, f"{OPTION}: "))
        files = checkpoint_files(path, checkpoint.tensors.values() if checkpoint else None)
        return DrafterSource(origin, config, checkpoint, files)


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Says in errors that they are the drafter's: its files have the names of the target's."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{OPTION}: {error}", hint=error.hint) from error
    except ConfigError as error:
        raise ConfigError(f"{OPTION}: {error}", hint=error.hint) from error


def _read_tiny(path: Path, target: Gemma4Config) -> DrafterConfig:
    try:
        return _read_config(path, target)
    except ConfigError as error:
        found = str(error).removeprefix(f"{OPTION}: ")
        raise ConfigError(
            f"{OPTION} {TINY}: it drafts for the model `{TINY}` alone: {found}",
            hint="give the drafter of this very model: its hub id and `-assistant`, or a directory",
        ) from error


def _read_config(path: Path, target: Gemma4Config) -> DrafterConfig:
    with _named():
        config = read_drafter(read_json(path / CONFIG_FILE), _warn_of_unknown)
        check_fit(config, target)
    return config


def _warn_of_unknown(names: list[str]) -> None:
    warn_of_unknown(names, f"{OPTION}: ")


def match_drafter(checkpoint: Checkpoint, config: Gemma4Config) -> dict[str, TensorInfo]:
    """Hold a drafter's tensors against its parameters; returns them by source name.

    Raises
    ------
    CheckpointError
        As `match` does, or if the table of tokens by cluster is none.
    """
    with _named():
        matched = match(checkpoint.tensors, config, (DRAFTER,))
    if ORDERING in matched:
        count = matched[ORDERING].shape[0]
        found = np.sort(row_reader(matched)(ORDERING, 0, count))
        wrong = np.flatnonzero(found != np.arange(count, dtype=np.float32))
        if len(wrong):
            raise CheckpointError(
                f"{OPTION}: tensor `{ORDERING.removeprefix(STEM)}` does not hold every token id "
                f"from 0 to {count - 1} once: {int(wrong[0])} is missing or another id twice",
                hint="the checkpoint is damaged: download it again",
            )
    return matched


def check_tokenizer(drafter: Checkpoint, target: Checkpoint, vocab_size: int) -> None:
    """Refuse a drafter whose tokens are others than the target's; it needs no tokenizer itself.

    Ids beyond the model's `vocab_size` are in no prompt, and are not compared.

    Raises
    ------
    CheckpointError
        Naming the first token that differs.
    """
    files = [one.path / TOKENIZER_FILE for one in (drafter, target)]
    if not all(file.is_file() for file in files) or _same_bytes(*files):
        return
    with _named():
        own = _vocabulary(files[0], vocab_size)
    expected = _vocabulary(files[1], vocab_size)
    if own == expected:
        return
    for token in sorted({*own, *expected}):
        if own.get(token) != expected.get(token):
            raise CheckpointError(
                "the drafter does not fit its target: its tokenizer has "
                f"{own.get(token, 'no id')} for token {token[:40]!r}, expected "
                f"{expected.get(token, 'none')} as in the target's",
                hint="give the drafter of this very model, or leave out --drafter: replies are the "
                "same without it",
            )


def _same_bytes(first: Path, second: Path) -> bool:
    try:
        return regular_files.read_regular(first, MAX_TOKENIZER_BYTES) == regular_files.read_regular(
            second, MAX_TOKENIZER_BYTES
        )
    except OSError as error:
        raise CheckpointError(f"cannot read `{TOKENIZER_FILE}`: {error.strerror}") from error


def _vocabulary(file: Path, vocab_size: int) -> dict[str, object]:
    """Ids by token, added ones too, of those that the model has."""
    values = read_json(file, MAX_TOKENIZER_BYTES, 1 << 24)
    vocabulary, added = vocabulary_of(values, str(file))
    ids = {**vocabulary, **{str(token.get("content")): token.get("id") for token in added}}
    return {token: i for token, i in ids.items() if not is_beyond(i, vocab_size)}


def with_drafter(config: Gemma4Config, drafter: DrafterSource | None) -> Gemma4Config:
    """The target's config with its drafter's."""
    return config if drafter is None else replace(config, drafter=drafter.config)

"""Checkpoints on the Hugging Face hub; tokens, cache, resume and progress are huggingface_hub's.

Of the files that a repository has, those are downloaded that a directory would be read from. What
its names and sizes say is looked at before.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import logging
from collections.abc import Mapping
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors

from gemma4_compile.checkpoint import kinds
from gemma4_compile.checkpoint.chat_files import CHAT_FILES, MAX_TEMPLATES, MORE_TEMPLATES
from gemma4_compile.checkpoint.files import (
    CONFIG_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    SINGLE_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    read_json,
)
from gemma4_compile.checkpoint.hub_access import (
    CLIENT,
    COMMIT,
    MAX_FILES,
    ask,
    cached,
    repository,
    serves_no_file,
)
from gemma4_compile.checkpoint.hub_errors import clear_errors, http_status, warn_of_cache
from gemma4_compile.checkpoint.kinds import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Listing
from gemma4_compile.checkpoint.sentence_files import MODULES_FILE, SENTENCE_FILES, pooling_files
from gemma4_compile.checkpoint.weight_files import shard_files
from gemma4_compile.errors import CheckpointError
from gemma4_compile.options.process import warn
from gemma4_compile.system.regular_files import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES

_log = logging.getLogger(__name__)

NEEDED_FILES = (
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    TEMPLATE_FILE,
    *CHAT_FILES,
    *SENTENCE_FILES,
    INDEX_FILE,
)
"""Besides the weights."""
_BESIDE_TOKENIZER = (
    *(TOKENIZER_CONFIG_FILE, TEMPLATE_FILE, GENERATION_FILE),
    *(name for name in CHAT_FILES if "*" not in name),
)


def fetch_tokenizer(model: str, revision: str | None) -> Path:
    """Fetch what a repository has for texts alone; returns the snapshot directory that holds it.

    Raises
    ------
    CheckpointError
        As `fetch_config`, of `tokenizer.json`.
    """
    with clear_errors(model, revision):
        path = Path(_download(model, TOKENIZER_FILE, revision)).parent
        for name in _BESIDE_TOKENIZER:
            known = huggingface_hub.try_to_load_from_cache(model, name, revision=path.name)
            if known is None:
                # Without a connection what the cache has is all; a model needs none of them.
                with contextlib.suppress(hub_errors.EntryNotFoundError):
                    _download(model, name, path.name)
    return path


def _check_size(model: str, file: str, size: int | None) -> None:
    limit = MAX_TOKENIZER_BYTES if file == TOKENIZER_FILE else MAX_JSON_BYTES
    if size is not None and size > limit and file != ADAPTER_WEIGHTS:
        raise CheckpointError(
            f"`{file}` of `{model}` is too large: {size} bytes, at most {limit}",
            hint="it is no file of a released Gemma 4; nothing was downloaded",
        )


def fetch_config(model: str, revision: str | None) -> Path:
    """Fetch `config.json` alone; returns the snapshot directory that holds it.

    Raises
    ------
    CheckpointError
        If the model, the revision or the file does not exist, or the hub cannot be reached.
    """
    with clear_errors(model, revision):
        try:
            return Path(_download(model, CONFIG_FILE, revision)).parent
        except hub_errors.LocalEntryNotFoundError:
            raise
        except hub_errors.EntryNotFoundError as error:
            listing = _listing(model, revision, repository(model, revision))
            kinds.check_adapter(listing)
            raise kinds.no_config(listing) from error


def _download(model: str, file: str, revision: str | None) -> str:
    """Fetch a text file; one of the cache is returned without a connection, too.

    That is said for a branch or a tag, which may be another commit by now.
    """
    known = cached(model, file, revision)
    if known is not None and COMMIT.fullmatch(revision or ""):
        _log.info("%s of %s: in the cache", file, model)
        return known
    size, reason = ask(model, file, revision, is_cached=known is not None)
    if reason is not None:
        if known is None:
            raise hub_errors.LocalEntryNotFoundError(file) from reason
        if not constants.HF_HUB_OFFLINE:  # which asks for the cache
            warn_of_cache(model, Path(known).parent, reason)
        return known
    _check_size(model, file, size)
    _log.info("%s of %s: asking the hub%s", file, model, "" if known is None else ", cached before")
    return huggingface_hub.hf_hub_download(model, file, revision=revision, **CLIENT)


def fetch_adapter(model: str, revision: str | None, *, weights: bool) -> Path:
    """Fetch an adapter of PEFT; returns the snapshot directory that holds it.

    Without `weights`, nothing but its config is downloaded. Errors as :func:`fetch_config`.
    """
    with clear_errors(model, revision):
        try:
            path = Path(_download(model, ADAPTER_CONFIG, revision)).parent
            if weights:
                _download(model, ADAPTER_WEIGHTS, path.name)
        except hub_errors.LocalEntryNotFoundError:
            raise
        except hub_errors.EntryNotFoundError as error:
            listing = _listing(model, revision, repository(model, revision))
            raise kinds.no_adapter(listing) from error
        for name in (TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE) if weights else ():
            with contextlib.suppress(hub_errors.EntryNotFoundError):
                _download(model, name, path.name)
    return path


def fetch_generation_config(model: str, commit: str) -> None:
    """Fetch `generation_config.json` into the snapshot of the config, if the model has one.

    A cache without it serves where the hub cannot be reached; a warning says what is not known.

    Raises
    ------
    CheckpointError
        If the hub refuses it.
    """
    known = huggingface_hub.try_to_load_from_cache(model, GENERATION_FILE, revision=commit)
    if known is huggingface_hub._CACHED_NO_EXIST:  # known to be none, offline too
        return
    with clear_errors(model, commit), contextlib.suppress(hub_errors.RemoteEntryNotFoundError):
        try:
            _download(model, GENERATION_FILE, commit)
        except hub_errors.LocalEntryNotFoundError:
            warn(
                f"`{GENERATION_FILE}` of `{model}` is not in the local cache and the hub cannot be "
                "reached: tokens that it forbids (`suppress_tokens`) are not left out",
                "run the command again where the hub can be reached, before the library is used",
            )


def _listing(model: str, revision: str | None, files: Mapping[str, int | None]) -> Listing:
    def read(name: str) -> Mapping[str, object]:
        return read_json(Path(_download(model, name, revision)))

    return Listing(model, frozenset(files), read, is_hub=True)


def _wanted_weights(model: str, revision: str | None, files: Mapping[str, int | None]) -> list[str]:
    """The files of a repository that hold the weights; the single one before shards."""
    listing = _listing(model, revision, files)
    kinds.check_adapter(listing)
    if SINGLE_FILE in files:
        return [SINGLE_FILE]
    if INDEX_FILE not in files:
        raise kinds.no_weights(listing)
    shards = sorted(set(shard_files(Path(_download(model, INDEX_FILE, revision))).values()))
    missing = [shard for shard in shards if shard not in files]
    if missing:
        raise CheckpointError(
            f"`{model}` has no `{missing[0]}`, which its `{INDEX_FILE}` lists "
            f"({len(missing)} of {len(shards)} shards are missing)",
            hint="its upload is not complete: ask its owner, or give another revision",
        )
    return shards


def _check_files(model: str, files: Mapping[str, int | None]) -> None:
    """Refuse what is too much to download, by what the hub lists."""
    if len(files) >= MAX_FILES:
        raise CheckpointError(
            f"`{model}` has too many files: {MAX_FILES} or more",
            hint="download the folder that holds the checkpoint (`hf download` has --include), "
            "and give that directory",
        )
    wanted = [n for n in files if any(fnmatch.fnmatchcase(n, one) for one in NEEDED_FILES)]
    for name in wanted:
        _check_size(model, name, files[name])
    templates = [name for name in wanted if name.startswith(f"{MORE_TEMPLATES}/")]
    if len(templates) > MAX_TEMPLATES:
        raise CheckpointError(
            f"`{MORE_TEMPLATES}` of `{model}` has too many chat templates: {len(templates)}, at "
            f"most {MAX_TEMPLATES}",
            hint="it is no folder of a released Gemma 4; nothing was downloaded",
        )


def _cached_weights(model: str, revision: str | None) -> list[str]:
    """Names of the weights that a cache may hold, where the hub cannot be asked."""
    index = cached(model, INDEX_FILE, revision)
    if index is not None and cached(model, SINGLE_FILE, revision) is None:
        return sorted(set(shard_files(Path(index)).values()))
    return [SINGLE_FILE]


def _is_cached(model: str, revision: str | None) -> bool:
    """Whether the local cache holds the config and all weights of a revision."""
    names = (CONFIG_FILE, *_cached_weights(model, revision))
    return all(cached(model, name, revision) is not None for name in names)


def _from_cache(model: str, revision: str | None, reason: Exception) -> Path:
    """The snapshot of a revision in the local cache, where the hub cannot be asked for `reason`.

    A commit whose files are all there is the same as on the hub; for all else a warning says where
    it is from.
    """
    weights = _cached_weights(model, revision)
    try:
        path = _snapshot(model, revision, weights, local_files_only=True)
    except hub_errors.LocalEntryNotFoundError:
        raise hub_errors.LocalEntryNotFoundError("a file of it") from reason
    if not all((path / name).exists() for name in weights):
        raise hub_errors.LocalEntryNotFoundError("weights") from reason
    lacks = [name for name in (GENERATION_FILE, TEMPLATE_FILE) if not (path / name).exists()]
    is_asked_for = constants.HF_HUB_OFFLINE or COMMIT.fullmatch(revision or "")
    if lacks or not is_asked_for:
        warn_of_cache(model, path, reason, lacks)
    return path


def _snapshot(
    model: str, revision: str | None, names: list[str], *, local_files_only: bool = False
) -> Path:
    return Path(
        huggingface_hub.snapshot_download(
            model,
            revision=revision,
            allow_patterns=[*NEEDED_FILES, *map(glob.escape, names)],
            local_files_only=local_files_only,
            **CLIENT,
        )
    )


def fetch(model: str, revision: str | None, *, has_texts: bool = False) -> Path:
    """Fetch config, tokenizer and safetensors files; returns their directory.

    Its name is the commit that `revision` (a branch, a tag, a commit; the main branch by default)
    named. Where the hub cannot be reached or serves nothing, the local cache does, if it holds all
    of it. Errors as :func:`fetch_config`; also for a repository that holds no weights to read, and
    where a model `has_texts`, for one without `tokenizer.json`.
    """
    with clear_errors(model, revision):
        try:
            _, reason = ask(model, CONFIG_FILE, revision)
            files = {} if reason is not None else repository(model, revision)
        except hub_errors.HfHubHTTPError as error:
            is_own_trouble = (http_status(error) or 0) >= 500
            if not is_own_trouble and not (serves_no_file(error) and _is_cached(model, revision)):
                raise
            reason = error
        if reason is not None:
            return _from_cache(model, revision, reason)
        _check_files(model, files)
        weights = _wanted_weights(model, revision, files)
        if has_texts and TOKENIZER_FILE not in files:
            raise kinds.no_tokenizer(_listing(model, revision, files))
        poolings: list[str] = []
        if MODULES_FILE in files:
            named = pooling_files(Path(_download(model, MODULES_FILE, revision)).parent)
            poolings = [name for name in named if name in files]
        for name in poolings:
            _check_size(model, name, files[name])
        return _snapshot(model, revision, [*weights, *poolings])

"""Checkpoints on the Hugging Face hub; tokens, cache, resume and progress are huggingface_hub's.

Of the files that a repository has, those are downloaded that a directory would be read from. What
its names and sizes say is looked at before.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import RepoFile

from gemma4_compile import __version__
from gemma4_compile.checkpoint import kinds
from gemma4_compile.checkpoint.chat_files import CHAT_FILES
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
from gemma4_compile.checkpoint.hub_errors import clear_errors, http_status
from gemma4_compile.checkpoint.kinds import Listing
from gemma4_compile.checkpoint.weight_files import shard_files
from gemma4_compile.errors import CheckpointError
from gemma4_compile.process import warn
from gemma4_compile.regular_files import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES

NEEDED_FILES = (
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    TEMPLATE_FILE,
    *CHAT_FILES,
    INDEX_FILE,
)
"""Besides the weights."""
_WEIGHTS = (SINGLE_FILE, INDEX_FILE)
_NAME = "gemma4_compile"
_HUB_ID = re.compile(r"\w[\w.\-]*/\w[\w.\-]*", re.ASCII)
_MAX_FILES = 20_000  # of a repository that are looked at
_NOT_AGAIN = (401, 403, 429)
"""Answers that do not change when they are asked for again at once."""


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form `organisation/model`."""
    return _HUB_ID.fullmatch(model) is not None


def _ask(model: str, file: str, revision: str | None) -> tuple[int | None, Exception | None]:
    """Bytes of a file where the hub tells, and the reason why one request does not reach it.

    huggingface_hub itself tries again for half a minute. A hub that was found and is slow to answer
    is left to that patience, and so is one that answers with an error of its own.
    """
    try:
        url = huggingface_hub.hf_hub_url(model, file, revision=revision)
        found = huggingface_hub.get_hf_file_metadata(
            url, library_name=_NAME, library_version=__version__
        )
        return getattr(found, "size", None), None
    except (hub_errors.HfHubHTTPError, hub_errors.FileMetadataError) as error:
        if http_status(error) in _NOT_AGAIN:
            raise
        return None, None
    except Exception as error:  # of the HTTP library that this version of huggingface_hub is on
        return None, None if type(error).__name__ == "ReadTimeout" else error


def _check_size(model: str, file: str, size: int | None) -> None:
    limit = MAX_TOKENIZER_BYTES if file == TOKENIZER_FILE else MAX_JSON_BYTES
    if size is not None and size > limit:
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
            listing = _listing(model, revision, _repository(model, revision))
            kinds.check_adapter(listing)
            raise kinds.no_config(listing) from error


def _download(model: str, file: str, revision: str | None) -> str:
    """Fetch a text file; one of the cache is returned without a connection, too."""
    known = huggingface_hub.try_to_load_from_cache(model, file, revision=revision)
    if not isinstance(known, str):
        size, reason = _ask(model, file, revision)
        if reason is not None:
            raise hub_errors.LocalEntryNotFoundError(file) from reason
        _check_size(model, file, size)
    return huggingface_hub.hf_hub_download(
        model, file, revision=revision, library_name=_NAME, library_version=__version__
    )


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


def _repository(model: str, revision: str | None) -> dict[str, int | None]:
    """Bytes of a repository's files by name; of very many, the first ones."""
    entries = huggingface_hub.list_repo_tree(model, recursive=True, revision=revision)
    files = itertools.islice((one for one in entries if isinstance(one, RepoFile)), _MAX_FILES)
    return {file.path: file.size for file in files}


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
    if missing and len(files) < _MAX_FILES:
        raise CheckpointError(
            f"`{model}` has no `{missing[0]}`, which its `{INDEX_FILE}` lists "
            f"({len(missing)} of {len(shards)} shards are missing)",
            hint="its upload is not complete: ask its owner, or give another revision",
        )
    return shards


def _cached_weights(model: str, revision: str | None) -> list[str]:
    """Names of the weights that a cache may hold, where the hub cannot be asked."""
    index = huggingface_hub.try_to_load_from_cache(model, INDEX_FILE, revision=revision)
    single = huggingface_hub.try_to_load_from_cache(model, SINGLE_FILE, revision=revision)
    if isinstance(index, str) and not isinstance(single, str):
        return sorted(set(shard_files(Path(index)).values()))
    return [SINGLE_FILE]


def fetch(model: str, revision: str | None) -> Path:
    """Fetch config, tokenizer and safetensors files; returns their directory.

    Its name is the commit that `revision` (a branch, a tag, a commit; the main branch by default)
    named. Errors as :func:`fetch_config`; also for a repository that holds no weights to read.
    """
    with clear_errors(model, revision):
        _, reason = _ask(model, CONFIG_FILE, revision)
        files: dict[str, int | None] = {}
        if reason is None:
            try:
                files = _repository(model, revision)
            except hub_errors.HfHubHTTPError as error:
                if (http_status(error) or 0) < 500:
                    raise
                reason = error  # a hub with trouble of its own: what is in the cache serves
        if reason is None:
            weights = _wanted_weights(model, revision, files)
            for name in NEEDED_FILES:
                _check_size(model, name, files.get(name))
        else:
            weights = _cached_weights(model, revision)
        path = Path(
            huggingface_hub.snapshot_download(
                model,
                revision=revision,
                allow_patterns=[*NEEDED_FILES, *weights],
                local_files_only=reason is not None,
                library_name=_NAME,
                library_version=__version__,
            )
        )
        if reason is not None and not any((path / name).exists() for name in _WEIGHTS):
            raise hub_errors.LocalEntryNotFoundError("weights") from reason
        return path

"""What every download from the hub begins with: names, the cache, one careful question.

Checkpoints and packages share it; what a repository is to hold is theirs.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import TypedDict

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import RepoFile

from gemma4_compile import __version__
from gemma4_compile.checkpoint.hub_errors import http_status

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A revision that never changes."""
MAX_FILES = 20_000  # and folders of a repository that are looked at
XET_BUFFERS = {
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_SIZE": "64mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_PERFILE_SIZE": "64mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT": "128mb",
}
"""What `hf_xet` may hold of files on their way, by its documented variables (docs.rs/xet-runtime,
`ReconstructionConfig`): the least that it takes by itself, and as much again for the one file that
is fetched at a time. By itself it takes a sixteenth of the machine's memory, and up to a fourth."""
_XET_UNBOUNDED = ("HF_XET_HIGH_PERFORMANCE", "HF_XET_HP")  # who asks for that has other bounds
_NOT_AGAIN = (401, 403, 429)
"""Answers that do not change when they are asked for again at once."""


class Client(TypedDict):
    """Who asks, as the hub's functions take it."""

    library_name: str
    library_version: str


def bound_buffers() -> None:
    """Bound what a download holds in memory, where the environment does not say otherwise.

    `hf_xet` reads its variables when the first file is fetched.
    """
    if not any(os.environ.get(name) for name in _XET_UNBOUNDED):
        for name, value in XET_BUFFERS.items():
            os.environ.setdefault(name, value)


bound_buffers()
CLIENT = Client(library_name="gemma4_compile", library_version=__version__)


def cached(model: str, file: str, revision: str | None) -> str | None:
    """The path of a file in the local cache, if it is there."""
    known = huggingface_hub.try_to_load_from_cache(model, file, revision=revision)
    return known if isinstance(known, str) else None


def ask(
    model: str, file: str, revision: str | None, *, is_cached: bool = False
) -> tuple[int | None, Exception | None]:
    """Bytes of a file where the hub tells, and the reason why one request does not reach it.

    huggingface_hub itself tries again for half a minute. A hub that was found and is slow to answer
    is left to that patience, and so is one that answers with an error of its own, unless the file
    is in the local cache.
    """
    try:
        url = huggingface_hub.hf_hub_url(model, file, revision=revision)
        found = huggingface_hub.get_hf_file_metadata(url, **CLIENT)
        return getattr(found, "size", None), None
    except (hub_errors.HfHubHTTPError, hub_errors.FileMetadataError) as error:
        if is_cached and serves_no_file(error):
            return None, error
        if http_status(error) in _NOT_AGAIN:
            raise
        return None, None
    except Exception as error:  # of the HTTP library that this version of huggingface_hub is on
        is_slow = type(error).__name__ == "ReadTimeout"
        return None, None if is_slow and not is_cached else error


def serves_no_file(error: Exception) -> bool:
    """Whether the hub serves nothing for now, or not to this user; what it lacks is not meant."""
    status = http_status(error)
    return status is not None and (status in _NOT_AGAIN or status >= 500)


def listed(model: str, revision: str | None) -> list[RepoFile]:
    """The files that a repository lists; of very many, the first ones."""
    entries = huggingface_hub.list_repo_tree(model, recursive=True, revision=revision)
    first = itertools.islice(entries, MAX_FILES)
    return [one for one in first if isinstance(one, RepoFile)]


def repository(model: str, revision: str | None) -> dict[str, int | None]:
    """Bytes of a repository's files by name; of very many, the first ones."""
    return {one.path: one.size for one in listed(model, revision)}

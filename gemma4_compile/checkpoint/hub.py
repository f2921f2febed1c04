"""Checkpoints on the Hugging Face hub; tokens, cache, resume and progress are huggingface_hub's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors

from gemma4_compile import __version__
from gemma4_compile.checkpoint.chat_files import CHAT_FILES
from gemma4_compile.checkpoint.files import (
    CONFIG_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    SINGLE_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
)
from gemma4_compile.errors import CheckpointError

NEEDED_FILES = (
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    TEMPLATE_FILE,
    *CHAT_FILES,
    INDEX_FILE,
    "model*.safetensors",
)
_WEIGHTS = (SINGLE_FILE, INDEX_FILE)
_NAME = "gemma4_compile"
_HUB_ID = re.compile(r"\w[\w.\-]*/\w[\w.\-]*", re.ASCII)


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form `organisation/model`."""
    return _HUB_ID.fullmatch(model) is not None


@contextlib.contextmanager
def _clear_errors(model: str, revision: str | None) -> Iterator[None]:
    at = f" at revision `{revision}`" if revision else ""
    try:
        yield
    except hub_errors.GatedRepoError as error:
        raise CheckpointError(
            f"`{model}` asks for its licence to be accepted",
            hint=f"accept it at https://huggingface.co/{model}, then run `hf auth login`",
        ) from error
    except hub_errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"`{model}` has no revision `{revision}`", hint="give a branch, a tag or a commit"
        ) from error
    except hub_errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no model `{model}` on the hub, or it is private",
            hint="check the name; for a private model run `hf auth login`",
        ) from error
    except hub_errors.LocalEntryNotFoundError as error:
        reason = f": {_first_line(error.__cause__)}" if error.__cause__ else ""
        raise CheckpointError(
            f"`{model}`{at} is not in the local cache and the hub cannot be reached{reason}",
            hint="check the network (and HF_HUB_OFFLINE), or give a local directory",
        ) from error
    except hub_errors.EntryNotFoundError as error:
        raise CheckpointError(
            f"`{model}`{at} has no `{CONFIG_FILE}`", hint="it is no transformers checkpoint"
        ) from error
    except Exception as error:  # whatever the network makes of it: reported, not swallowed
        raise CheckpointError(
            f"downloading `{model}`{at} failed: {_first_line(error)}",
            hint="run the same command again: finished files are kept",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _no_way_there(model: str, revision: str | None) -> Exception | None:
    """The reason why one request does not reach the hub; None if it answers, with any status.

    huggingface_hub itself tries again for half a minute. A hub that was found and is slow to answer
    is left to that patience.
    """
    try:
        url = huggingface_hub.hf_hub_url(model, CONFIG_FILE, revision=revision)
        huggingface_hub.get_hf_file_metadata(url, library_name=_NAME, library_version=__version__)
    except (hub_errors.HfHubHTTPError, hub_errors.FileMetadataError):
        return None
    except Exception as error:  # of the HTTP library that this version of huggingface_hub is on
        return None if type(error).__name__ == "ReadTimeout" else error
    return None


def fetch_config(model: str, revision: str | None) -> Path:
    """Fetch `config.json` alone; returns the snapshot directory that holds it.

    Raises
    ------
    CheckpointError
        If the model, the revision or the file does not exist, or the hub cannot be reached.
    """
    with _clear_errors(model, revision):
        return Path(_download(model, CONFIG_FILE, revision)).parent


def _download(model: str, file: str, revision: str | None) -> str:
    """Fetch a file; one of the cache is returned without a connection, too."""
    known = huggingface_hub.try_to_load_from_cache(model, file, revision=revision)
    reason = None if isinstance(known, str) else _no_way_there(model, revision)
    if reason is not None:
        raise hub_errors.LocalEntryNotFoundError(file) from reason
    return huggingface_hub.hf_hub_download(
        model, file, revision=revision, library_name=_NAME, library_version=__version__
    )


def fetch_generation_config(model: str, commit: str) -> None:
    """Fetch `generation_config.json` into the snapshot of the config, if the model has one.

    Raises
    ------
    CheckpointError
        If the hub cannot be reached.
    """
    known = huggingface_hub.try_to_load_from_cache(model, GENERATION_FILE, revision=commit)
    if known is huggingface_hub._CACHED_NO_EXIST:  # known to be none, offline too
        return
    with _clear_errors(model, commit), contextlib.suppress(hub_errors.RemoteEntryNotFoundError):
        _download(model, GENERATION_FILE, commit)


def fetch(model: str, revision: str | None) -> Path:
    """Fetch config, tokenizer and safetensors files; returns their directory.

    Its name is the commit that `revision` (a branch, a tag, a commit; the main branch by default)
    named. Errors as :func:`fetch_config`.
    """
    with _clear_errors(model, revision):
        reason = _no_way_there(model, revision)
        path = Path(
            huggingface_hub.snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(NEEDED_FILES),
                local_files_only=reason is not None,
                library_name=_NAME,
                library_version=__version__,
            )
        )
        if reason is not None and not any((path / name).exists() for name in _WEIGHTS):
            raise hub_errors.LocalEntryNotFoundError("weights") from reason
        return path

"""Checkpoints on the Hugging Face hub; tokens, cache, resume and progress are huggingface_hub's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors

from gemma4_compile import __version__
from gemma4_compile.checkpoint import (
    CONFIG_FILE,
    GENERATION_FILE,
    INDEX_FILE,
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
    INDEX_FILE,
    "model*.safetensors",
)
_HUB_ID = re.compile(r"\w[\w.\-]*/\w[\w.\-]*", re.ASCII)


def is_hub_id(model: str) -> bool:
    """Whether a name has the form `organisation/model`."""
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
        raise CheckpointError(
            f"`{model}`{at} is not in the local cache and the hub cannot be reached",
            hint="check the network (and HF_HUB_OFFLINE), or give a local directory",
        ) from error
    except hub_errors.EntryNotFoundError as error:
        raise CheckpointError(
            f"`{model}`{at} has no `{CONFIG_FILE}`", hint="it is no transformers checkpoint"
        ) from error
    except Exception as error:  # whatever the network makes of it: reported, not swallowed
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"downloading `{model}`{at} failed: {reason}",
            hint="run the same command again: finished files are kept",
        ) from error


def fetch_config(model: str, revision: str | None) -> Path:
    """Fetch `config.json` alone; returns the snapshot directory that holds it.

    Raises
    ------
    CheckpointError
        If the model, the revision or the file does not exist, or the hub cannot be reached.
    """
    with _clear_errors(model, revision):
        file = huggingface_hub.hf_hub_download(
            model,
            CONFIG_FILE,
            revision=revision,
            library_name="gemma4_compile",
            library_version=__version__,
        )
    return Path(file).parent


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
        huggingface_hub.hf_hub_download(
            model,
            GENERATION_FILE,
            revision=commit,
            library_name="gemma4_compile",
            library_version=__version__,
        )


def fetch(model: str, revision: str | None) -> Path:
    """Fetch config, tokenizer and safetensors files; returns their directory.

    Its name is the commit that `revision` (a branch, a tag, a commit; the main branch by default)
    stood for. Errors as :func:`fetch_config`.
    """
    with _clear_errors(model, revision):
        return Path(
            huggingface_hub.snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(NEEDED_FILES),
                library_name="gemma4_compile",
                library_version=__version__,
            )
        )

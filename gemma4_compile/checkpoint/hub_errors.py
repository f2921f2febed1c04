"""What goes wrong on the way to the hub, in plain words and each with what to do about it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from huggingface_hub import constants, get_token
from huggingface_hub import errors as hub_errors

from gemma4_compile.errors import CheckpointError, Gemma4CompileError, printable
from gemma4_compile.options.process import warn

_SHOWN_LETTERS = 200
_CHANGED = (409, 412)
"""Answers to a commit on one that is not the last any more."""
_LEGAL = 451  # for legal reasons
_AGAIN = "run the same command again: finished files are kept"
# Of a network's error, and what to look at.
_NETWORK = (
    (
        ("name or service not known", "name resolution", "getaddrinfo", "nodename nor servname"),
        "the name of the hub has no address: check the network, DNS and HF_ENDPOINT",
    ),
    (
        ("certificate_verify_failed", "certificate verify failed"),
        "something between here and the hub has a certificate of its own: let SSL_CERT_FILE name "
        "the file that vouches for it",
    ),
    (("proxy",), "check HTTPS_PROXY and what the proxy lets through"),
)


@contextlib.contextmanager
def clear_errors(model: str, revision: str | None, *, uploads: bool = False) -> Iterator[None]:
    """Say what failed for a model, where huggingface_hub or the network raise.

    Parameters
    ----------
    uploads : something is written to the hub, not read

    Raises
    ------
    CheckpointError
        For whatever they make of it: reported, not swallowed.
    """
    try:
        yield
    except Gemma4CompileError:
        raise
    except Exception as error:
        raise _told(error, model, revision, uploads=uploads) from error


def _told(error: Exception, model: str, revision: str | None, *, uploads: bool) -> CheckpointError:
    at = f" at revision `{revision}`" if revision else ""
    of_access = _access(error, model, uploads=uploads)
    if of_access is not None:
        return of_access
    if uploads and http_status(error) in _CHANGED:
        return CheckpointError(
            f"somebody else has changed `{model}` meanwhile{_server_message(error)}",
            hint="nothing of this package is there: see what is, and run the same command again",
        )
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return CheckpointError(
            f"`{model}` has no revision `{revision}`", hint="give a branch, a tag or a commit"
        )
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return CheckpointError(
            f"there is no model `{model}` on the hub, or it is private",
            hint="check the name; for a private model run `hf auth login`, or set HF_TOKEN",
        )
    if isinstance(error, hub_errors.LocalEntryNotFoundError):
        return _unreachable(error, f"`{model}`{at}")
    if isinstance(error, hub_errors.EntryNotFoundError):
        return CheckpointError(
            f"`{model}`{at} has no `{_asked_file(error)}` any more, or not yet",
            hint="it is being changed, or its upload is not complete: run the command again later, "
            "or give a commit as its revision",
        )
    hint = _AGAIN
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"free space there, or set HF_HOME to a folder of another disk, then {_AGAIN}"
    elif isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        hint = f"set HF_HOME to a folder that you may write to, then {_AGAIN}"
    doing = "uploading" if uploads else "downloading"
    return CheckpointError(f"{doing} `{model}`{at} failed: {first_line(error)}", hint=hint)


def warn_of_cache(model: str, snapshot: Path, reason: Exception, lacks: Sequence[str] = ()) -> None:
    """Say that a model is from the local cache, which nobody compared with the hub.

    `lacks` are files that it does not have, and the model may.
    """
    status = http_status(reason)
    why = first_line(reason) if status is None else f"it answered {status}"
    if constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set"
    rest = f"; there is no `{'` and no `'.join(lacks)}` in it" if lacks else ""
    of_access = _access(reason, model)
    warn(
        f"the hub was not asked about `{model}` ({why}): what the local cache holds of commit "
        f"{snapshot.name} is taken{rest}",
        str(of_access.hint)
        if of_access is not None
        else "run the command again where the hub can be reached, to take what has changed there",
    )


def _asked_file(error: BaseException) -> str:
    """The file that the hub does not have, of the address that was asked for."""
    url = str(getattr(getattr(error, "response", None), "url", ""))
    name = unquote(url.partition("?")[0].partition("/resolve/")[2].partition("/")[2])
    return printable(name[:_SHOWN_LETTERS]) or "file that it lists"


def _access(error: Exception, model: str, *, uploads: bool = False) -> CheckpointError | None:
    """The error for what the hub answered about rights, rates and itself; None for all else."""
    if isinstance(error, hub_errors.GatedRepoError):
        return CheckpointError(
            f"`{model}` asks for its licence to be accepted",
            hint=f"accept it at https://huggingface.co/{model}, then run `hf auth login`, or set "
            "HF_TOKEN to a token of that account",
        )
    status, said = http_status(error), _server_message(error)
    if status == _LEGAL or isinstance(error, hub_errors.DisabledRepoError):
        return CheckpointError(
            f"the hub has taken `{model}` away{said}",
            hint="give another copy of that model, or a local directory that holds it",
        )
    if status == 401 and not isinstance(error, hub_errors.RepositoryNotFoundError):
        return CheckpointError(
            f"the hub does not take the token that is set, for `{model}`{said}",
            hint="run `hf auth login` with a new one, or correct HF_TOKEN; public models need none",
        )
    if status == 403:
        return CheckpointError(
            f"the token that is set may not {'write to' if uploads else 'read'} `{model}`{said}",
            hint="give it that right at https://huggingface.co/settings/tokens (public gated "
            "repositories have one of their own), or run `hf auth login` with another",
        )
    if status == 429:
        return CheckpointError(
            f"the hub takes no more requests for now, for `{model}`{said}",
            hint="try again some minutes later; with `hf auth login`, or HF_TOKEN, it takes more",
        )
    if status is not None and status >= 500:
        return CheckpointError(
            f"the hub has trouble of its own ({status}), for `{model}`{said}",
            hint=f"try again later (https://status.huggingface.co), or {_AGAIN}",
        )
    return None


def _unreachable(error: Exception, model: str) -> CheckpointError:
    reason = f": {first_line(error.__cause__)}" if error.__cause__ else ""
    if constants.HF_HUB_OFFLINE:
        return CheckpointError(
            f"`{model.strip('`')}` is not in the local cache, or not whole, and HF_HUB_OFFLINE is "
            f"set: the hub cannot be reached{reason}",
            hint="run it once without HF_HUB_OFFLINE, or give a local directory",
        )
    found = next((hint for words, hint in _NETWORK if _mentions(error, words)), None)
    return CheckpointError(
        f"{model} is not in the local cache and the hub cannot be reached{reason}",
        hint=f"{found or 'check the network (and HF_HUB_OFFLINE)'}, or give a local directory",
    )


def _mentions(error: Exception, words: tuple[str, ...]) -> bool:
    text = " ".join(f"{type(one).__name__} {one}" for one in _chain(error)).lower()
    return any(word in text for word in words)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, the last first."""
    one: BaseException | None = error
    for _ in range(16):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def http_status(error: BaseException) -> int | None:
    """The status that the hub answered with, if an error comes from an answer."""
    for one in _chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _server_message(error: BaseException) -> str:
    for one in _chain(error):
        said = getattr(one, "server_message", None)
        if isinstance(said, str) and said.strip():
            line = _without_token(said.strip().splitlines()[0])
            return f": {printable(line[:_SHOWN_LETTERS])}"
    return ""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, its class where it has none."""
    return _without_token((str(error).strip() or type(error).__name__).splitlines()[0])


def _without_token(text: str) -> str:
    """A text of somebody else without the user's token, which an answer may repeat."""
    try:
        token = get_token()
    except Exception:  # of a file that cannot be read: then there was none to send
        return text
    return text.replace(token, "(the token)") if token else text

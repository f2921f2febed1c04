"""Packages on the Hugging Face hub: what this machine needs of one, in the hub's shared cache.

`provenance.json` says which files a package has, how large they are and what their hashes are.
Nothing else is downloaded, nothing larger, and nothing stays in the cache that is not what it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from gemma4_compile import abi
from gemma4_compile.checkpoint.hub_access import (
    CLIENT,
    COMMIT,
    MAX_FILES,
    ask,
    cached,
    listed,
)
from gemma4_compile.checkpoint.hub_errors import clear_errors, warn_of_cache
from gemma4_compile.device_kinds import BROWSER
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.runtime.library.library_file import this_machine
from gemma4_compile.runtime.package.hub_snapshot import HubPackage, forget_file
from gemma4_compile.runtime.package.integrity import (
    MAX_WEIGHT_BYTES,
    ByteCount,
    file_limit,
)
from gemma4_compile.runtime.package.room import DESCRIPTIONS
from gemma4_compile.system.regular_files import MAX_JSON_BYTES

_log = logging.getLogger(__name__)

Wanted = Callable[[Provenance], Collection[str]]
"""Names of those files of a package that are needed here."""

Admit = Callable[[Path, Provenance], None]
"""Is given the folder with a package's descriptions, and raises what speaks against the rest."""

_BLOCK_BYTES = 1 << 20
_SHOWN = 8  # folders in a message
_AGAIN = "run the same command again: finished files are kept"
_ASK_OWNER = (
    "its upload is not complete, or it was changed: ask its owner, or give another revision"
)


def fetch_package(
    model: str,
    revision: str | None,
    wanted: Wanted,
    progress: ByteCount = lambda done, total: None,
    admit: Admit = lambda directory, provenance: None,
) -> HubPackage:
    """Fetch what is wanted of a package; what the cache has is not asked for again.

    Without a connection the cache serves, if it holds all that is wanted.

    Parameters
    ----------
    admit : is asked once DESCRIPTIONS are there, before anything larger is fetched; it raises
        ArtifactError to refuse that

    Raises
    ------
    CheckpointError
        If the repository does not exist, may not be read, or cannot be reached.
    ArtifactError
        If it holds no package, none for this machine, or other files than its `provenance.json`
        lists.
    """
    with clear_errors(model, revision):
        directory = _find(model, revision, wanted)
        provenance = _read(model, directory)
        names = _checked_names(model, provenance, wanted)
        if not names:
            raise _not_for_here(model, revision, provenance)
        missing = [name for name in names if not _is_there(directory, name, provenance)]
        _log.info("%s: %d files wanted, %d not in the cache", model, len(names), len(missing))
        if missing:
            _download(model, directory, provenance, missing, progress, admit)
    return HubPackage(model, directory.name, directory)


def _find(model: str, revision: str | None, wanted: Wanted) -> Path:
    """The snapshot that holds `provenance.json`; an older whole one where nothing can be asked."""
    file = abi.PROVENANCE_FILE
    known = cached(model, file, revision)
    if known is not None and COMMIT.fullmatch(revision or ""):
        return Path(known).parent
    size, reason = ask(model, file, revision, is_cached=known is not None)
    if reason is None:
        if size is not None and size > MAX_JSON_BYTES:
            raise _too_large(model, file, size, MAX_JSON_BYTES)
        try:
            fetched = huggingface_hub.hf_hub_download(model, file, revision=revision, **CLIENT)
        except hub_errors.LocalEntryNotFoundError:
            raise
        except hub_errors.EntryNotFoundError as error:
            raise _no_package(model, revision) from error
        return Path(fetched).parent
    if known is None:
        raise hub_errors.LocalEntryNotFoundError(file) from reason
    directory = _whole(model, Path(known).parent, wanted)
    if directory is None:
        raise hub_errors.LocalEntryNotFoundError(file) from reason
    if not constants.HF_HUB_OFFLINE or directory != Path(known).parent:
        warn_of_cache(model, directory, reason)
    return directory


def _whole(model: str, newest: Path, wanted: Wanted) -> Path | None:
    """The newest of the snapshots in the cache that has all that is wanted."""
    others = sorted(newest.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for directory in (newest, *(path for path in others if path != newest)):
        with contextlib.suppress(ArtifactError):
            provenance = _read(model, directory)
            names = _checked_names(model, provenance, wanted)
            if all(_is_there(directory, name, provenance) for name in names):
                return directory
    return None


def _no_package(model: str, revision: str | None) -> ArtifactError:
    """The error for a repository without `provenance.json`, which says what it is instead."""
    names = {one.path for one in listed(model, revision)}
    at = f"{model}" if revision is None else f"{model} --revision {revision}"
    end = f"/{abi.PROVENANCE_FILE}"
    folders = sorted(name.removesuffix(end) for name in names if name.endswith(end))
    if folders:
        inside = shlex.quote(f"{folders[0]}/*")
        return ArtifactError(
            f"`{model}` on the hub has packages in folders: {', '.join(folders[:_SHOWN])}",
            hint=f"fetch one of them: hf download {at} --include {inside} --local-dir DIR, then "
            f"give {shlex.quote(f'DIR/{folders[0]}')}",
        )
    if "config.json" in names:
        return ArtifactError(
            f"`{model}` on the hub is a checkpoint, not a package",
            hint=f"compile it first: gemma4-compile {at} --target cpu -o DIR (metal, cuda, or "
            "webgpu for browsers), then give DIR",
        )
    if "adapter_config.json" in names:
        return ArtifactError(
            f"`{model}` on the hub is an adapter, not a package",
            hint=f"compile its base model with it: gemma4-compile MODEL --adapter {model} -o DIR",
        )
    if any(name.endswith(".gguf") for name in names):
        return ArtifactError(
            f"`{model}` on the hub has GGUF files, for llama.cpp, and is no package",
            hint="compile the original checkpoint: gemma4-compile MODEL --target cpu -o DIR",
        )
    return ArtifactError(
        f"`{model}` on the hub is no package: it has no `{abi.PROVENANCE_FILE}`",
        hint="give the id of what gemma4-compile made; another revision is owner/name@REVISION",
    )


def _not_for_here(model: str, revision: str | None, provenance: Provenance) -> ArtifactError:
    """The error for a package without a library that this command runs on this machine."""
    if not provenance.libraries:
        return ArtifactError(
            f"`{model}` on the hub has no library: it is the rest of a package",
            hint="give another; nothing was downloaded",
        )
    at = model if revision is None else f"{model}@{revision}"
    targets = list(dict.fromkeys(one.target for one in provenance.libraries))
    browsers = f"gemma4-serve {at} runs it in a browser; or " if BROWSER in targets else ""
    return ArtifactError(
        f"`{model}` on the hub has no library for {this_machine()}: it is for {', '.join(targets)}",
        hint=f"{browsers}compile its model for this machine: gemma4-compile MODEL --target cpu -o "
        "DIR; nothing was downloaded",
    )


def _read(model: str, directory: Path) -> Provenance:
    try:
        return Provenance.from_json(read_artifact(directory / abi.PROVENANCE_FILE))
    except ArtifactError as error:
        raise ArtifactError(f"`{model}` on the hub: {error}", hint=_ASK_OWNER) from error


def _checked_names(model: str, provenance: Provenance, wanted: Wanted) -> list[str]:
    """The wanted files, whose names are plain already; their sizes are those of their kind."""
    names = sorted(wanted(provenance))
    total = 0
    for name in names:
        nbytes, limit = provenance.files[name][0], file_limit(name)
        if not 0 <= nbytes <= limit:
            raise _too_large(model, name, nbytes, limit)
        total += nbytes
    if len(names) > MAX_FILES or total > MAX_WEIGHT_BYTES:
        raise ArtifactError(
            f"`{model}` lists too much: {len(names)} files of {total} bytes, at most {MAX_FILES} "
            f"of {MAX_WEIGHT_BYTES}",
            hint="it is no package of a released Gemma 4; nothing of it was downloaded",
        )
    return names


def _too_large(model: str, name: str, nbytes: int, limit: int) -> ArtifactError:
    return ArtifactError(
        f"`{name}` of `{model}`: expected at most {limit} bytes, found {nbytes}",
        hint="it is no file of a package; it was not downloaded",
    )


def _is_there(directory: Path, name: str, provenance: Provenance) -> bool:
    """Whether the cache has a file, of the size that it is to have."""
    try:
        return (directory / name).stat().st_size == provenance.files[name][0]
    except OSError:
        return False


def _download(
    model: str,
    directory: Path,
    provenance: Provenance,
    missing: list[str],
    progress: ByteCount,
    admit: Admit,
) -> None:
    """Fetch files of a commit one after the other, and keep those that are what is listed."""
    _, reason = ask(model, missing[0], directory.name, is_cached=False)
    if reason is not None:
        raise hub_errors.LocalEntryNotFoundError(missing[0]) from reason
    _check_listing(model, listed(model, directory.name), provenance, missing)
    total = sum(provenance.files[name][0] for name in missing)
    _check_space(model, total)
    done, asked = 0, False
    for name in sorted(missing, key=lambda name: name not in DESCRIPTIONS):
        if name not in DESCRIPTIONS and not asked:
            asked = True
            if all((directory / one).exists() for one in DESCRIPTIONS):
                admit(directory, provenance)
        progress(done, total)
        if os.path.lexists(directory / name):  # of another size than it should be
            forget_file(directory / name)
        _log.info("downloading %s of %s, %d bytes", name, model, provenance.files[name][0])
        with _without_bars():
            path = Path(
                huggingface_hub.hf_hub_download(model, name, revision=directory.name, **CLIENT)
            )
        _check(model, path, *provenance.files[name])
        done += provenance.files[name][0]
    progress(done, total)


def _check_listing(
    model: str, entries: list[RepoFile], provenance: Provenance, missing: list[str]
) -> None:
    """Compare what the hub says of files with what is listed, before they are fetched."""
    found = {one.path: one for one in entries}
    for name in missing:
        nbytes, sha256 = provenance.files[name]
        entry = found.get(name)
        if entry is None:
            raise ArtifactError(
                f"`{model}` has no `{name}`, which its `{abi.PROVENANCE_FILE}` lists",
                hint=_ASK_OWNER,
            )
        large = entry.lfs.sha256 if entry.lfs is not None else sha256
        if entry.size != nbytes or large != sha256:
            raise ArtifactError(
                f"`{name}` of `{model}` is another file than its `{abi.PROVENANCE_FILE}` lists: "
                f"expected {nbytes} bytes, sha256 {sha256:.12}, found {entry.size}, {large:.12}",
                hint=_ASK_OWNER,
            )


def _check_space(model: str, nbytes: int) -> None:
    folder = Path(constants.HF_HUB_CACHE)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise ArtifactError(
            f"`{model}` needs {nbytes} bytes more in `{constants.HF_HUB_CACHE}`, found {free} free",
            hint="free space there (`hf cache rm`), or set HF_HOME to a folder of another disk",
        )


def _check(model: str, path: Path, nbytes: int, sha256: str) -> None:
    """Hash what came; what is not what was listed leaves the cache again."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    found = path.stat().st_size
    if found != nbytes or digest.hexdigest() != sha256:
        forget_file(path)
        raise ArtifactError(
            f"`{path.name}` of `{model}` came damaged: expected {nbytes} bytes, sha256 "
            f"{sha256:.12}, found {found}, {digest.hexdigest():.12}; it was removed",
            hint=f"{_AGAIN}. If it comes so again, {_ASK_OWNER}",
        )


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Leave progress to the command, which knows the whole."""
    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()

"""Packages of the hub in its shared cache, without the hub's client, which takes long to load."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from gemma4_compile.checkpoint.hub_id import is_hub_id
from gemma4_compile.device_kinds import BROWSER, NATIVE_KINDS
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.package.drafter_files import without_drafter
from gemma4_compile.runtime.package.integrity import DamagedFileError

_ID_PARTS = 2
_MACOS = "darwin"


@dataclass(frozen=True)
class HubPackage:
    """A package of the hub that lies in the local cache.

    Attributes
    ----------
    name : owner/name
    commit : what the revision named
    """

    name: str
    commit: str
    directory: Path

    def __str__(self) -> str:
        """The package as it is shown, with what shows which one it is."""
        return f"{self.name}@{self.commit[:12]}"


def needed_files(
    provenance: Provenance, *, drafter: bool, pages: bool = True, system: str = sys.platform
) -> Collection[str]:
    """The files of a package that a run on this machine reads; none where no library is for it.

    Parameters
    ----------
    drafter : its files are wanted
    pages : so are the libraries for browsers
    system : as `sys.platform` has it
    """
    kinds = NATIVE_KINDS.items()
    elsewhere = {
        name for name, kind in kinds if not kind.is_host and kind.is_of_macs != (system == _MACOS)
    }
    if not pages:
        elsewhere.add(BROWSER)
    libraries = provenance.libraries
    used = {one.file for one in libraries if one.device not in elsewhere}
    if not used:
        return []
    unused = {one.file for one in libraries} - used
    files = (provenance if drafter else without_drafter(provenance)).files
    return [name for name in files if name not in unused]


def hub_name(given: Path) -> tuple[str, str | None] | None:
    """The hub id and the revision that a name on the command line stands for.

    None where there is a file or folder of that name, which wins, or where it is no hub id.
    """
    if os.path.lexists(given):
        return None
    model, at, revision = given.as_posix().partition("@")
    if not is_hub_id(model) or (at and not revision):
        return None
    return model, revision or None


def hub_package_of(directory: Path) -> HubPackage | None:
    """What a directory is a snapshot of, if it lies in the hub's cache."""
    folder, cache = directory.absolute(), Path(constants.HF_HUB_CACHE).absolute()
    kind, *parts = folder.parent.parent.name.split("--")
    if folder.parent.parent.parent != cache or kind != "models" or len(parts) < _ID_PARTS:
        return None
    return HubPackage(f"{parts[0]}/{'--'.join(parts[1:])}", folder.name, directory)


@contextlib.contextmanager
def forgetting_damage(directory: Path) -> Iterator[None]:
    """Remove a file that turns out damaged from the hub's cache, so that it is fetched again."""
    try:
        yield
    except DamagedFileError as error:
        if hub_package_of(directory) is None:
            raise
        forget_file(directory / error.file)
        raise ArtifactError(
            f"{error}; it is removed from the cache",
            hint="run the same command again: it is fetched anew",
        ) from error


def forget_file(path: Path) -> None:
    """Remove a file of a snapshot, and the blob that it leads to."""
    blob = path.resolve()
    path.unlink(missing_ok=True)
    if blob.parent.name == "blobs":
        blob.unlink(missing_ok=True)

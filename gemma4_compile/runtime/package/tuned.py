"""Which library of a package was found the fastest on this machine: kept beside the hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.package.notes import read_note, write_note

_NOTES = "tuned-packages"
_MOST_NOTES = 500
_MOST_BYTES = 256  # of a library's name


def kept_choice(directory: Path, provenance: Provenance, devices: Mapping[str, str]) -> str | None:
    """The name of the library that was kept for exactly these libraries on these devices.

    Parameters
    ----------
    devices : what each library that runs here runs on, by the library's name
    """
    found = read_note(_NOTES, choice_name(directory, provenance, devices), _MOST_BYTES)
    return None if found is None else found.decode("utf-8", errors="replace")


def keep_choice(
    directory: Path, provenance: Provenance, devices: Mapping[str, str], name: str
) -> None:
    """Keep a choice until the package or the devices change; parameters as of `kept_choice`."""
    note = choice_name(directory, provenance, devices)
    write_note(_NOTES, note, name.encode("utf-8"), _MOST_NOTES)


def choice_name(directory: Path, provenance: Provenance, devices: Mapping[str, str]) -> str:
    """A digest of the package, its usable libraries and their devices."""
    files = {one.name: provenance.files[one.file] for one in provenance.libraries}
    known = {name: (devices[name], files[name]) for name in sorted(devices)}
    text = json.dumps([str(directory.resolve()), known], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

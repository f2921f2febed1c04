"""What is remembered of a package's files once they are hashed, in parts.

Its libraries share all other files: whoever runs another library hashes that alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.package.notes import read_note, write_note
from gemma4_compile.types import JsonObject

_NOTES, _LIBRARY_NOTES = "checked-packages", "checked-libraries"
MOST_REMEMBERED = 500  # of each kind

_checked_here: set[str] = set()  # signatures that this process has checked


@dataclass(frozen=True)
class Part:
    """Files of a package that are known together: a library of several is exchanged alone.

    Attributes
    ----------
    kind, note : folder and name of the note with the signature, once they are checked
    signature : values that change when a file is replaced or written to
    is_shared : whether these are the files that its libraries share
    """

    kind: str
    note: str
    signature: str
    stats: Mapping[str, os.stat_result]
    is_shared: bool

    def is_known(self) -> bool:
        """Return whether these very files were checked before."""
        if self.signature in _checked_here:
            return True
        return read_note(self.kind, self.note, len(self.signature)) == self.signature.encode()

    def keep(self) -> None:
        """Remember that they are as they are listed."""
        _checked_here.add(self.signature)
        write_note(self.kind, self.note, self.signature.encode(), MOST_REMEMBERED)


def parts_of(
    directory: Path, provenance: Provenance, stats: Mapping[str, os.stat_result]
) -> list[Part]:
    """What the package's libraries share, and the library that is looked at."""
    library, files = provenance.library, provenance.files
    own = {name: listed for name, listed in files.items() if name == library}
    shared = {name: listed for name, listed in files.items() if name != library}
    whole = replace(provenance, library=None, libraries=(), files=shared).to_json()
    found = [_part(directory, directory, whole, {name: stats[name] for name in shared})]
    if library is not None:
        path = directory / library
        found.append(_part(directory, path, {"files": own}, {library: stats[library]}))
    return found


def _part(
    directory: Path, noted: Path, said: JsonObject, stats: Mapping[str, os.stat_result]
) -> Part:
    files = [
        [name, stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev]
        for name, stat in stats.items()
    ]
    text = json.dumps([str(directory.resolve()), files, said], sort_keys=True)
    note = note_of(noted)
    signature, shared = hashlib.sha256(text.encode()).hexdigest(), noted == directory
    return Part(_NOTES if shared else _LIBRARY_NOTES, note, signature, stats, shared)


def note_of(path: Path) -> str:
    """The name of the note of a package's directory, or of a library."""
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()

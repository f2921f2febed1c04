"""Files that grow while they are read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime import Package
from gemma4_compile.runtime.package import integrity
from gemma4_compile.runtime.package.integrity import Check


class Endless(io.RawIOBase):
    """A file to which somebody adds faster than it is read."""

    given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, memory: Any) -> int:
        self.given += len(memory)
        return len(memory)


def test_a_file_that_grows_while_it_is_hashed_is_read_to_its_listed_size(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Endless()
    monkeypatch.setattr(integrity, "open_regular", lambda path: io.BufferedReader(file))
    with pytest.raises(ArtifactError, match="is damaged"):
        Package.open(tiny_package, check=Check.ALWAYS)
    listed = json.loads((tiny_package / abi.PROVENANCE_FILE).read_text())["files"]
    assert file.given <= listed[abi.TENSOR_CACHE_FILE]["nbytes"] + (1 << 20)

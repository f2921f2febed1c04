from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A private file of the user, next to the directories of a run: nothing may touch it."""
    path = tmp_path / "id_rsa"
    path.write_text("secret")
    path.chmod(0o600)
    yield path
    assert path.read_text() == "secret"
    assert path.stat().st_mode & 0o777 == 0o600

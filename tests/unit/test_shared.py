"""What is made once a run: by one process, whole, for all of them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.child import run_within
from tests.shared import made_once

ROOT = Path(__file__).parents[2]
MAKE = """
import sys, time
from pathlib import Path
from tests.shared import made_once

def make(path):
    path.mkdir()
    (path / "first").write_text(sys.argv[2])
    time.sleep(0.5)
    (path / "second").write_text(sys.argv[2])

print(*sorted(file.read_text() for file in made_once(Path(sys.argv[1]), make).iterdir()))
"""


def test_of_several_processes_one_makes_it(tmp_path: Path) -> None:
    def start(name: str) -> str:
        command = [sys.executable, "-c", MAKE, str(tmp_path / "shared" / "package"), name]
        done = run_within(60, command, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    with ThreadPoolExecutor() as pool:
        told = list(pool.map(start, "abc"))
    assert told[0] in ("a a", "b b", "c c")
    assert told == [told[0]] * 3


def test_what_fails_halfway_is_not_there_and_is_made_anew(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        made_once(tmp_path / "package", fail)
    assert not (tmp_path / "package").exists()
    made = made_once(tmp_path / "package", lambda path: path.mkdir())
    assert list(made.iterdir()) == []

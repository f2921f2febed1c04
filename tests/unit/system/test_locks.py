"""Locks of descriptors: of this system, and in the form of Windows with a made-up `msvcrt`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_compile.system import locks

HOLD = """
import os, sys
from gemma4_compile.system import locks
locks.take(os.open(sys.argv[1], os.O_RDWR))
print("held", flush=True)
sys.stdin.read()
"""


class Bytes:
    """Locks of bytes, as Windows knows them."""

    LK_NBLCK = 2

    def __init__(self, refusal: int | None = None) -> None:
        self.refusal = refusal
        self.calls: list[tuple[int, int, int, int]] = []

    def locking(self, fd: int, mode: int, nbytes: int, /) -> None:
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.calls.append((fd, mode, nbytes, os.lseek(fd, 0, os.SEEK_CUR)))


def test_a_lock_is_held_until_its_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open("r+b") as file:
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(BlockingIOError):
                locks.take(file.fileno())
        locks.take(file.fileno())


def test_on_windows_the_first_byte_is_locked(tmp_path: Path) -> None:
    made = Bytes()
    with (tmp_path / "lock").open("w+b") as file:
        file.write(b"content")
        file.flush()
        locks.take_byte(file.fileno(), made)
        assert made.calls == [(file.fileno(), Bytes.LK_NBLCK, 1, 0)]


def test_a_byte_that_another_holds_blocks(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w+b") as file, pytest.raises(BlockingIOError):
        locks.take_byte(file.fileno(), Bytes(errno.EACCES))


def test_a_file_system_without_locks_is_no_other_process(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w+b") as file, pytest.raises(OSError, match="Invalid"):
        locks.take_byte(file.fileno(), Bytes(errno.EINVAL))

"""A folder that holds what the memory of prefixes holds, so that a later process finds it.

It is the user's alone, and one process's at a time. A thread of its own writes, so that no reply
waits for a disk; what is written has another name until it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.prefixes.prefix_file import (
    MOST_HEADER,
    DamagedPrefixError,
    Layout,
    PrefixHeader,
    decode,
    encode,
    joined,
    name_of,
    unread_note,
)
from gemma4_compile.runtime.prefixes.saved_rows import RowBlock, SavedRows
from gemma4_compile.runtime.prefixes.tree import Node
from gemma4_compile.system import locks
from gemma4_compile.system.folders import Folder, open_folder
from gemma4_compile.system.regular_files import check_own_directory, check_regular

_PREFIX, _ROWS, _PART, _LOCK = ".prefix", ".rows", "written.part", "prefixes.lock"
_OURS = re.compile(rf"[0-9a-f]{{64}}({_PREFIX}|{_ROWS})|{re.escape(_PART)}|{re.escape(_LOCK)}")
_OF_MODEL = re.compile(r"model-[0-9a-f]{16}")
_log = logging.getLogger(__name__)


class FolderInUseError(UsageError):
    """Another process keeps its prefixes there."""


@dataclass(frozen=True)
class _Write:
    node: Node[SavedRows]
    keys: tuple[int, ...]


@dataclass(frozen=True)
class _Remove:
    node: Node[SavedRows]


class PrefixFolder:
    """Files of kept prefixes, read once and written behind."""

    def __init__(
        self,
        path: Path,
        layout: Layout,
        note: Callable[[str], object] = _log.warning,
        memory: Callable[[int], npt.NDArray[np.uint8]] = lambda nbytes: np.empty(nbytes, np.uint8),
    ) -> None:
        """Open a folder, which is made where there is none.

        Parameters
        ----------
        note : is told of files that are not read, and of what cannot be written
        memory : makes room for so many bytes of a file

        Raises
        ------
        UsageError
            If it is no folder of this user's alone, or another process has it.
        """
        self._path, self._layout, self._note, self._memory = path, layout, note, memory
        check_folder(path, make=True)
        self._open = contextlib.ExitStack()
        try:
            self._folder: Folder = self._open.enter_context(_taken(path))
        except BlockingIOError as error:
            self._open.close()
            raise _in_use(path) from error
        except OSError as error:
            self._open.close()
            raise _unusable(path, error.strerror or str(error)) from error
        self._blocks: dict[str, RowBlock] = {}  # of files that are there
        self._names: dict[Node[SavedRows], tuple[str, tuple[str, ...]]] = {}
        self._jobs: queue.Queue[_Write | _Remove | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="prefixes", daemon=True)

    def read(
        self,
        add: Callable[[tuple[int, ...], SavedRows], Node[SavedRows] | None],
        budget: int,
    ) -> None:
        """Have all prefixes of the folder added, the latest last; remove what is none of them.

        Parameters
        ----------
        budget : bytes of rows to read at most, of the latest ones; others are removed
        """
        names = [name for name in self._folder.names() if _OURS.fullmatch(name)]
        changed = {name: self._folder.changed_ns(name) for name in names if name.endswith(_PREFIX)}
        reading = _Reading(self._decoded, self._layout, frozenset(names), budget)
        found: list[tuple[str, PrefixHeader, SavedRows]] = []
        unread: dict[str, list[str]] = {}  # names of files by why they are not
        for name in sorted(changed, key=changed.__getitem__, reverse=True):
            try:
                found.append((name.removesuffix(_PREFIX), *reading.prefix(name)))
            except _NoMoreRoomError:
                self._note(f"`{self._path}` has more than --prefix-memory: the oldest ones go")
                break
            except (DamagedPrefixError, OSError, MemoryError) as error:
                unread.setdefault(_why(error), []).append(name)
        if unread:
            self._note(unread_note(self._path, unread))
        for stem, header, saved in reversed(found):
            node = add(header.keys, saved)
            if node is not None and node.state is saved:
                self._names[node] = stem, header.blocks
                self._blocks |= dict(zip(header.blocks, saved.blocks, strict=True))
        for node in [one for one in self._names if one.state is None]:  # the memory has no room
            del self._names[node]
        self._sweep(names)
        self._thread.start()

    def write(self, node: Node[SavedRows], keys: tuple[int, ...]) -> None:
        """Write a prefix some time, if it is there by then."""
        self._jobs.put(_Write(node, keys))

    def remove(self, node: Node[SavedRows]) -> None:
        """Remove what was written of a prefix."""
        self._jobs.put(_Remove(node))

    def flush(self) -> None:
        """Return when all that was asked for is done."""
        self._jobs.join()

    def close(self) -> None:
        """Write what is still to be written, and let go of the folder."""
        self._jobs.put(None)
        self._thread.join()
        self._open.close()

    def _work(self) -> None:
        failed = False
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, _Remove):
                    self._forget(job.node)
                elif not failed:
                    self._put(job)
            except (OSError, MemoryError) as error:
                failed = True
                self._note(f"no more prefixes are written to `{self._path}`: {_why(error)}")
            finally:
                self._jobs.task_done()
        self._jobs.task_done()

    def _put(self, job: _Write) -> None:
        state = job.node.state
        if state is None or job.node in self._names:
            return
        names = tuple(self._put_block(block) for block in state.blocks)
        header = PrefixHeader(job.keys, state.shortest, names)
        name = self._put_file(encode(self._layout, state.rings, header), _PREFIX)
        self._names[job.node] = name, names

    def _put_block(self, block: RowBlock) -> str:
        known = next((name for name, other in self._blocks.items() if other is block), None)
        if known is not None:
            return known
        name = self._put_file(encode(self._layout, block, None), _ROWS)
        self._blocks[name] = block
        return name

    def _put_file(self, pieces: list[memoryview], kind: str) -> str:
        name = name_of(pieces)
        descriptor = self._folder.open(_PART, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                for piece in pieces:
                    while piece:
                        piece = piece[file.write(piece) :]
            self._folder.replace(_PART, name + kind)
        except BaseException:
            with contextlib.suppress(OSError):
                self._folder.remove(_PART)
            raise
        return name

    def _forget(self, node: Node[SavedRows]) -> None:
        name, blocks = self._names.pop(node, ("", ()))
        if not name:
            return
        kept = {one for _, others in self._names.values() for one in others}
        gone = {block + _ROWS for block in set(blocks) - kept}
        if not any(name == other for other, _ in self._names.values()):
            gone.add(name + _PREFIX)
        for block in set(blocks) - kept:
            self._blocks.pop(block, None)
        for one in gone:
            with contextlib.suppress(FileNotFoundError):
                self._folder.remove(one)

    def _sweep(self, found: list[str]) -> None:
        """Remove files of ours that are no prefix's: parts, damaged ones, another package's."""
        wanted = {name + _PREFIX for name, _ in self._names.values()}
        wanted |= {name + _ROWS for _, blocks in self._names.values() for name in blocks}
        for name in found:
            if name not in wanted and name != _LOCK:
                with contextlib.suppress(OSError):
                    self._folder.remove(name)
        self._blocks = {
            name: block for name, block in self._blocks.items() if name + _ROWS in wanted
        }

    def _decoded(self, name: str, room: int, budget: int) -> tuple[RowBlock, PrefixHeader | None]:
        """Read a file; DamagedPrefixError, OSError, and _NoMoreRoomError if it is too large."""
        content = self._read_file(name, room, budget)
        block, header = decode(self._layout, name.partition(".")[0], content)
        if (header is not None) is not name.endswith(_PREFIX):
            raise DamagedPrefixError("it is of another kind than its name says")
        return block, header

    def _read_file(self, name: str, room: int, budget: int) -> memoryview:
        descriptor = self._folder.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            check_regular(status)
            if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o077):
                raise OSError(1, "others can read it, or it is another user's")
            if status.st_size > budget + MOST_HEADER:
                raise DamagedPrefixError("it is larger than --prefix-memory")
            if status.st_size > room + MOST_HEADER:
                raise _NoMoreRoomError
            content, done = self._memory(status.st_size).data, 0
            while count := file.readinto(content[done:]):
                done += count
        return content[:done]


class _NoMoreRoomError(Exception):
    """What is read next is more than the budget has left."""


class _Reading:
    """Reads prefixes, and every block of theirs once, while a budget has room for them."""

    def __init__(
        self,
        decoded: Callable[[str, int, int], tuple[RowBlock, PrefixHeader | None]],
        layout: Layout,
        names: frozenset[str],
        budget: int,
    ) -> None:
        self._decoded, self._layout, self._names = decoded, layout, names
        self._room = self._budget = budget
        self._blocks: dict[str, RowBlock] = {}

    def prefix(self, name: str) -> tuple[PrefixHeader, SavedRows]:
        """One of them; DamagedPrefixError and OSError for what is none, or lacks a block.

        MemoryError where the host has none for it.
        """
        rings, header = self._take(name)
        assert header is not None, "of a prefix"
        blocks = [self._block(block + _ROWS) for block in header.blocks]
        return header, joined(self._layout, header, blocks, rings)

    def _block(self, name: str) -> RowBlock:
        if name not in self._names:
            raise DamagedPrefixError(f"no {name[:80]}")
        if name not in self._blocks:
            self._blocks[name], _ = self._take(name)
        return self._blocks[name]

    def _take(self, name: str) -> tuple[RowBlock, PrefixHeader | None]:
        block, header = self._decoded(name, self._room, self._budget)
        if block.nbytes > self._room:
            raise _NoMoreRoomError
        self._room -= block.nbytes
        return block, header


def check_folder(path: Path, *, make: bool = False) -> None:
    """UsageError for what is no folder, a link, another user's, or open to others."""
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
        check_own_directory(path)
        mode = stat.S_IMODE(path.lstat().st_mode)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if sys.platform != "win32" and mode & 0o077:
        raise UsageError(
            f"--prefix-cache: others may look into `{path}`: expected mode 700, found {mode:o}",
            hint=f"it holds what was asked: chmod 700 '{path}', or name a folder that is not there",
        )


def check_free(path: Path) -> None:
    """As `check_folder` with `make`, and UsageError for a folder that another process has.

    For the time before a package is loaded: a `PrefixFolder` takes it afterwards.
    """
    check_folder(path, make=True)
    try:
        with _taken(path):
            pass
    except BlockingIOError as error:
        raise _in_use(path) from error
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def model_folder(path: Path, name: str) -> Path:
    """The folder within `path` for the model of this name, of several that a server has."""
    return path / f"model-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def forget(path: Path) -> int:
    """Remove all files of prefixes in a folder, and the folder if it is empty then; how many.

    Those of its `model_folder`s, too. UsageError as of `check_folder`, and where a process has it.
    """
    check_folder(path)
    removed = 0
    try:
        for one in sorted(path.iterdir()):
            if _OF_MODEL.fullmatch(one.name) and one.is_dir() and not one.is_symlink():
                removed += forget(one)
        with _taken(path) as folder:
            for name in _ours(folder):
                folder.remove(name)
                removed += 1
        with open_folder(path) as folder:  # a file that is open cannot be removed everywhere
            folder.remove(_LOCK)
        with contextlib.suppress(OSError):  # there are others' files
            path.rmdir()
    except BlockingIOError as error:
        raise FolderInUseError(
            f"--forget: a process keeps its prefixes in `{path}`", hint="end that process first"
        ) from error
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    return removed


@contextlib.contextmanager
def _taken(path: Path) -> Iterator[Folder]:
    """The folder, which is this process's meanwhile; BlockingIOError where it is another's."""
    with open_folder(path) as folder:
        lock = folder.open(_LOCK, os.O_RDWR | os.O_CREAT)
        try:
            locks.take(lock)
            yield folder
        finally:
            os.close(lock)


def _ours(folder: Folder) -> Iterator[str]:
    return (name for name in folder.names() if _OURS.fullmatch(name) and name != _LOCK)


def _in_use(path: Path) -> FolderInUseError:
    return FolderInUseError(
        f"--prefix-cache: another process keeps its prefixes in `{path}`",
        hint="give each process a folder of its own",
    )


def _unusable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"cannot keep prefixes in `{path}`: {why}",
        hint="name a folder of yours, or one to be made in a folder that is there",
    )


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "no memory"

"""Lines typed in earlier runs of `gemma4-chat`, in a file that nobody else reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit.history import History

from gemma4_compile.system.files import replace_file
from gemma4_compile.system.regular_files import check_regular

MAX_ENTRIES = 1000
MAX_ENTRY_CHARACTERS = 20_000  # a pasted book is not kept
_MAX_BYTES = 4 << 20  # of the file; what is older is dropped
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def history_path() -> Path | None:
    """Path of the kept lines; None where there is no home directory."""
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder / "gemma4-compile" / "chat-history"


class KeptHistory(History):
    """A history in a file of JSON strings, one a line, the latest last.

    Where the file cannot be read or written, that is said once, and the lines of this run are kept
    in memory.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        super().__init__()
        self._path, self._note = path, note
        self._works = True

    def load_history_strings(self) -> Iterable[str]:
        """The lines, the latest first."""
        try:
            entries, size = self._read()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
            return []
        if len(entries) > 2 * MAX_ENTRIES or size > _MAX_BYTES // 2:
            self._shorten(entries[-MAX_ENTRIES:])
        return reversed(entries[-MAX_ENTRIES:])

    def store_string(self, string: str) -> None:
        """Add a line, unless it is too long or nothing but the mark of a block."""
        if not self._works or len(string) > MAX_ENTRY_CHARACTERS or not string.strip('" '):
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = self._open(os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(descriptor, "ab") as file:
                file.write(_line(string))
        except OSError as error:
            self._give_up(error)

    def _read(self) -> tuple[list[str], int]:
        """The entries of the file's end, oldest first, and the bytes of the whole file."""
        with os.fdopen(self._open(os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _MAX_BYTES))
            lines = file.read(_MAX_BYTES).splitlines()
        return [entry for entry in map(_entry, lines) if entry is not None], size

    def _open(self, flags: int) -> int:
        """Open the file, which must be a regular one; nobody else may read it from then on."""
        descriptor = os.open(self._path, flags | _FLAGS, 0o600)
        try:
            check_regular(os.fstat(descriptor))
            if os.fstat(descriptor).st_mode & 0o077:
                os.chmod(descriptor if os.chmod in os.supports_fd else self._path, 0o600)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _shorten(self, entries: list[str]) -> None:
        """Write the file anew; one that cannot be written stays as it is."""
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
            with os.fdopen(os.open(scratch, flags, 0o600), "wb") as file:
                file.write(b"".join(map(_line, entries)))
            replace_file(scratch, self._path)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self._works:
            self._note(f"lines are not kept: `{self._path}`: {error.strerror}")
        self._works = False


def _line(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry(line: bytes) -> str | None:
    """A line's entry; None for what something else wrote."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, str) and len(entry) <= MAX_ENTRY_CHARACTERS else None

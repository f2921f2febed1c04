"""Memory that this process can still get without swapping: the machine's, and its container's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PATH_MARK = ":"
_UNLIMITED = "max"
_FILES = ("inactive_file", "active_file")  # cached pages of files, which make room when asked to


def available_bytes(root: Path = Path("/")) -> int | None:
    """The least of what the machine and each control group around this process have; Linux alone.

    None where the system does not tell.

    Parameters
    ----------
    root : of the file system

    References
    ----------
    proc(5) on `MemAvailable`; cgroups(7); the kernel's admin-guide/cgroup-v2.rst and cgroup-v1.
    """
    machine = _counts(root / "proc/meminfo").get("MemAvailable:")
    found = [] if machine is None else [machine * 1024]
    return min([*found, *_of_groups(root)], default=None)


def _of_groups(root: Path) -> Iterator[int]:
    """What is left of each limit of memory, its group's cached pages of files not counted."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(_PATH_MARK)
        controllers, _, path = rest.partition(_PATH_MARK)
        if not controllers:
            top, limit, usage, prefix = root / "sys/fs/cgroup", "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            top, prefix = root / "sys/fs/cgroup/memory", "total_"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = PurePosixPath("/", path).relative_to("/")
        # In a container the path may be the host's, which is not there: its top is the group then.
        for group in (top / own, *(top / parent for parent in own.parents)):
            most, used = _number(group / limit), _number(group / usage)
            if most is not None and used is not None:
                files = _counts(group / "memory.stat")
                cached = sum(files.get(prefix + name, 0) for name in _FILES)
                yield max(0, most - used + min(cached, used))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _number(path: Path) -> int | None:
    """The number that a file holds; None for none, and for no limit."""
    (text, *_) = (*_lines(path), _UNLIMITED)
    return int(text) if text.strip().isascii() and text.strip().isdigit() else None


def _counts(path: Path) -> dict[str, int]:
    """The numbers of a file by the word before each."""
    words = (line.split() for line in _lines(path))
    return {one[0]: int(one[1]) for one in words if len(one) > 1 and one[1].isdigit()}

"""Names of files that Windows does not take, or takes for something else.

A package goes from one system to another, so names in it follow the rules of all.
"""

from __future__ import annotations

import errno
import re
import sys
from pathlib import Path

_DEVICE = re.compile(
    r"(con|prn|aux|nul|(com|lpt)[0-9\xb9\xb2\xb3]|conin\$|conout\$) *(\..*)?", re.I
)
_LETTER = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_LONGEST = 259  # characters of a path, where nobody has asked for longer ones


def refusal_of_windows(name: str) -> str | None:
    """Why Windows takes no file or folder of a name; None if it does."""
    if _DEVICE.fullmatch(name):
        return f"Windows keeps the name `{name}` for a device"
    if found := _LETTER.search(name):
        return f"Windows takes no {found.group()!r} in a name"
    if name.endswith((".", " ")) and name.strip("."):
        return f"Windows takes no dot or space at the end of a name, as of `{name}`"
    return None


def check_new_name(path: Path) -> None:
    """Raise OSError if this system could not make what a path names, or would make another file."""
    if sys.platform == "win32":
        check_for_windows(path.parts[1:] if path.anchor else path.parts)


def check_for_windows(parts: tuple[str, ...]) -> None:
    """`check_new_name` on Windows."""
    for name in parts:
        if (why := refusal_of_windows(name)) is not None:
            raise OSError(errno.EINVAL, why)


def length_hint(path: Path) -> str:
    """What else to do about a path that cannot be written; "" where its length is no reason."""
    if sys.platform != "win32":
        return ""
    return length_hint_of_windows(str(path.absolute()))


def length_hint_of_windows(path: str) -> str:
    """`length_hint` on Windows."""
    if len(path) <= _LONGEST:
        return ""
    return (
        f"; the path has {len(path)} characters, and Windows takes {_LONGEST} unless its setting "
        "for long paths is on"
    )

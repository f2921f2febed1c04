"""`--fit`: the memory that a package may take, as a size or as the name of a typical device."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from gemma4_compile.errors import UsageError

LEAST, MOST = 1 << 20, 1 << 60
_SHARE, _LEAST_MARGIN, _MOST_MARGIN = 16, 64 << 20, 512 << 20
_NUMBER = re.compile(r"[-+.]?[0-9]")
_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,9}))? ?([a-z]*)", re.IGNORECASE)
_UNITS: Mapping[str, int] = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40},
}
_EXAMPLES = "give a size such as 8GB or 1.4GiB, or the name of a device from --plan"
_SHOWN = 40


@dataclass(frozen=True)
class Budget:
    """Memory of a device that a package may take.

    Attributes
    ----------
    text : as it was given
    total_bytes : of a device of that name, what a model can take of its memory
    device : its name; None for a size
    """

    text: str
    total_bytes: int
    device: str | None = None

    @property
    def margin_bytes(self) -> int:
        """What is left to the driver, the client and other programs.

        Of a size a sixteenth, 64 MiB to 512 MiB; devices of the table have theirs in it.
        """
        if self.device is not None:
            return 0
        return min(max(self.total_bytes // _SHARE, _LEAST_MARGIN), _MOST_MARGIN)

    @property
    def room_bytes(self) -> int:
        """What weights, keys and values, and activations may take; below 0 where nothing may."""
        return self.total_bytes - self.margin_bytes


def size_for(room_bytes: int) -> int:
    """The smallest size whose room is at least `room_bytes`."""
    by_share = -(-room_bytes * _SHARE // (_SHARE - 1))
    if by_share // _SHARE < _LEAST_MARGIN:
        return room_bytes + _LEAST_MARGIN
    if by_share // _SHARE >= _MOST_MARGIN:
        return room_bytes + _MOST_MARGIN
    while (by_share - 1) - (by_share - 1) // _SHARE >= room_bytes:
        by_share -= 1
    return by_share


def parse_fit(text: str) -> str:
    """A budget's text, checked but for the target's devices; UsageError for none."""
    if _NUMBER.match(text.strip()):
        _bytes_of(text)
    elif text.strip().casefold() not in {name.casefold() for name in _names(of_known=False)}:
        names = _names(of_known=True)
        known = get_close_matches(text.strip()[:_SHOWN], names, 3, 0.4) or names
        raise UsageError(
            f"--fit: expected a size or a device, found `{text[:_SHOWN]}`",
            hint=f"{_EXAMPLES}: {_quoted(known)}",
        )
    return text


def budget_of(text: str, targets: Sequence[str]) -> Budget:
    """The budget of a text, on the first of the targets that has a device of that name.

    Raises
    ------
    UsageError
        If the text is none, or no target has such a device, or its memory is not known.
    """
    given = parse_fit(text).strip()
    if _NUMBER.match(given):
        return Budget(given, _bytes_of(given))
    table = _devices()
    for target in targets:
        for name, memory in table.get(target, {}).items():
            if name.casefold() != given.casefold():
                continue
            if memory is None:
                raise UsageError(
                    f"--fit: how much memory `{name}` has is not known",
                    hint="give a size, such as 4GB",
                )
            return Budget(given, memory, name)
    having = [one for one, names in table.items() if given.casefold() in map(str.casefold, names)]
    here = [name for one in targets for name, memory in table.get(one, {}).items() if memory]
    known = f"; known for {','.join(targets)}: {_quoted(here)}" if here else ""
    raise UsageError(
        f"--fit: no device of target {','.join(targets)} is called `{given}`",
        hint=f"it is one of --target {','.join(having)}, or give a size such as 8GB{known}",
    )


def _bytes_of(text: str) -> int:
    """Bytes of a size."""
    found = _SIZE.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[3].lower())
    if found is None or unit is None:
        raise UsageError(f"--fit: expected a size, found `{text[:_SHOWN]}`", hint=_EXAMPLES)
    whole, part = int(found[1]), found[2] or ""
    size = whole * unit + int(part or 0) * unit // 10 ** len(part)
    if not LEAST <= size <= MOST:
        least, most = LEAST >> 20, MOST >> 40
        plain = f", and {found[1]}GB is gigabytes" if whole and not found[3] else ""
        raise UsageError(
            f"--fit: expected {least} MiB to {most} TiB, found {size} bytes (`{text[:_SHOWN]}`)",
            hint=f"{_EXAMPLES}{plain}",
        )
    return size


def _devices() -> dict[str, dict[str, int | None]]:
    """Memory of devices by name, by target; read without loading the compiler."""
    found = find_spec("gemma4_compile.targets")
    assert found is not None, "targets is a part of this program"
    assert found.origin is not None, "targets is a package with an `__init__`"
    table = json.loads(Path(found.origin).with_name("devices.json").read_text("utf-8"))
    return {
        target: {one["name"]: one["memory_bytes"] for one in entries}
        for target, entries in table.items()
    }


def _names(*, of_known: bool) -> list[str]:
    """Names of devices: those whose memory is known, or of all."""
    found = (item for names in _devices().values() for item in names.items())
    return list(dict.fromkeys(name for name, memory in found if memory or not of_known))


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)

"""What is kept of beginnings of prompts: sizes as options write them."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.options.command import PLAIN, Group
from gemma4_compile.options.process import path

DEFAULT_MEMORY = 2 << 30
DEFAULT_SHARE = 16
"""By default so many parts of the machine's memory are one."""
DEFAULT_FREE_SHARE = 2
"""And so many of what is free beside the model, also in a container's limit."""
MOST_MEMORY = 1 << 50
_UNITS = {"": 1, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))?\s*([kmgt]?)(i?b)?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of a size: 0, 2GiB, 512MiB, 1.5GB; ArgumentTypeError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[4] is None and (found[3] or int(found[1]))):
        raise argparse.ArgumentTypeError(f"expected a size such as 2GiB, or 0, found `{text[:40]}`")
    whole, part, exponent = int(found[1]), found[2] or "", _UNITS[found[3].lower()]
    is_binary = (found[4] or "").lower() == "ib"
    unit = 2**exponent if is_binary else 1000 ** (exponent // 10)
    size = whole * unit + int(part or 0) * unit // 10 ** len(part)
    if size > MOST_MEMORY:
        raise argparse.ArgumentTypeError(f"expected at most 1024TiB, found `{text[:40]}`")
    return size


def default_memory(machine: int, free: int | None) -> int:
    """Bytes that are kept where nobody says how many.

    Parameters
    ----------
    machine : bytes of the machine's memory
    free : of them, those that the process can still get; None where the system does not tell
    """
    most = min(DEFAULT_MEMORY, machine // DEFAULT_SHARE)
    return most if free is None else min(most, free // DEFAULT_FREE_SHARE)


def check_prefixes(cache: Path | None, memory: int | None) -> None:
    """UsageError for a folder without memory for what it holds."""
    if cache is not None and memory == 0:
        raise UsageError(
            "--prefix-cache holds what --prefix-memory does, which is 0",
            hint="leave out --prefix-cache, or give --prefix-memory a size",
        )


def prefix_cache_option(group: Group = PLAIN) -> Path | None:
    """A folder for beginnings of prompts; None for none."""
    return group.option(
        None,
        "--prefix-cache DIR",
        "keep beginnings of prompts in files of DIR, too, for the next start; of mode 700, made "
        "where there is none",
        type=path,
    )


def prefix_memory_option(group: Group = PLAIN) -> int | None:
    """Bytes for beginnings of prompts; None for a share of the machine's."""
    return group.option(
        None,
        "--prefix-memory SIZE",
        "memory of the host for beginnings of prompts, which later prompts go on from (2GiB, "
        f"512MiB; 0: none; default: 2GiB, at most a {DEFAULT_SHARE}th of the machine's "
        "and half of what is free)",
        type=parse_size,
    )

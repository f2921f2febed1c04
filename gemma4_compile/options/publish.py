"""The arguments of `gemma4-compile` that publish a package, and what can be wrong with them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from gemma4_compile.errors import UsageError
from gemma4_compile.options.process import Options, Parser, non_empty, path

LEAST_SHARD, MOST_SHARD = 64 << 10, 1 << 36
_SIZE = re.compile(r"([0-9]{1,12}) ?(|b|kb|mb|gb|kib|mib|gib)", re.IGNORECASE)
_UNITS = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9},
    **{"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30},
}
_BESIDE = ("publish", "from_package", "license_file", "public", "debug")


def parse_size(text: str) -> int:
    """Bytes of a size such as 25MiB; ArgumentTypeError for what is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 25MiB, found {text[:40]!r}")
    size = int(found[1]) * _UNITS[found[2].lower()]
    if not LEAST_SHARD <= size <= MOST_SHARD:
        raise argparse.ArgumentTypeError(
            f"expected {LEAST_SHARD} to {MOST_SHARD} bytes, found {text[:40]!r}"
        )
    return size


def add_publish(group: Options) -> None:
    """Add the options."""
    group.add_argument(
        "--shard-size",
        type=parse_size,
        metavar="SIZE",
        help="most of a file of weights, for hosts with a limit: bytes, or with KiB, MiB, GiB, KB, "
        "MB, GB (default: 32MiB, and more for a larger tensor)",
    )
    group.add_argument(
        "--publish",
        type=non_empty,
        metavar="OWNER/NAME",
        help="then upload the package to the hub, with a model card",
    )
    group.add_argument(
        "--from",
        type=path,
        metavar="DIR",
        dest="from_package",
        help="with --publish: upload this finished package, and compile nothing",
    )
    group.add_argument(
        "--license-file",
        type=path,
        metavar="FILE",
        help="with --publish: the licence of the weights (default: that of the checkpoint)",
    )
    group.add_argument(
        "--public",
        action="store_true",
        help="with --publish: a new repository is for everybody, not for its owner alone",
    )


def check_publish(arguments: argparse.Namespace, make_parser: Callable[[], Parser]) -> bool:
    """Return whether nothing is compiled; UsageError for what does not fit together."""
    if arguments.publish is None:
        for name in _BESIDE[1:-1]:
            if getattr(arguments, name):
                raise UsageError(
                    f"{_option(name)} goes with --publish",
                    hint="leave it out, or add --publish OWNER/NAME",
                )
        return False
    wrong = [name for name in ("plan", "report", "rebuild", "only") if getattr(arguments, name)]
    if wrong:
        raise UsageError(
            f"--publish needs a whole package, and {_option(wrong[0])} is given",
            hint="leave out one of them; a finished package is published by --from DIR",
        )
    if arguments.from_package is None:
        return False
    parser = make_parser()
    given = [
        _option(name)
        for name, value in vars(arguments).items()
        if name not in _BESIDE and value != parser.get_default(name)
    ]
    if given:
        raise UsageError(
            f"--from uploads a finished package, and {', '.join(given)} would compile one",
            hint="leave out --from, or all but --publish, --license-file and --public",
        )
    return True


def _option(name: str) -> str:
    known = {"from_package": "--from", "model": "MODEL", "output": "-o"}
    return known.get(name, f"--{name.replace('_', '-')}")

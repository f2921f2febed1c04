"""The options of `gemma4-compile` that publish a package, and what can be wrong with them."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.options.command import CommandOptions, Group, given
from gemma4_compile.options.process import non_empty

LEAST_SHARD, MOST_SHARD = 64 << 10, 1 << 36
_SIZE = re.compile(r"([0-9]{1,12}) ?(|b|kb|mb|gb|kib|mib|gib)", re.IGNORECASE)
_UNITS = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9},
    **{"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30},
}


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


_HUB = Group("to the hub")
_BESIDE = ("from_package", "license_file", "public")
_NO_PACKAGE = ("plan", "report", "rebuild", "only")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PublishOptions(CommandOptions):
    """Where a package goes, and what it needs there."""

    shard_size: int | None = _HUB.option(
        None,
        "--shard-size SIZE",
        "most of a file of weights, for hosts with a limit: bytes, or with KiB, MiB, GiB, KB, "
        "MB, GB (default: 32MiB, and more for a larger tensor)",
        type=parse_size,
    )
    publish: str | None = _HUB.option(
        None,
        "--publish OWNER/NAME",
        "then upload the package to the hub, with a model card",
        type=non_empty,
    )
    from_package: Path | None = _HUB.option(
        None, "--from DIR", "with --publish: upload this finished package, and compile nothing"
    )
    license_file: Path | None = _HUB.option(
        None,
        "--license-file FILE",
        "with --publish: the licence of the weights (default: that of the checkpoint)",
    )
    public: bool = _HUB.switch(
        "--public", "with --publish: a new repository is for everybody, not for its owner alone"
    )

    def check_publish(self) -> None:
        """Raise UsageError for what does not fit together."""
        if self.publish is None:
            for name in given(self, _BESIDE):
                raise UsageError(
                    f"{name} goes with --publish",
                    hint="leave it out, or add --publish OWNER/NAME",
                )
            return
        for name in given(self, _NO_PACKAGE):
            raise UsageError(
                f"--publish needs a whole package, and {name} is given",
                hint="leave out one of them; a finished package is published by --from DIR",
            )
        others = given(self, all_but=("publish", *_BESIDE))
        if self.from_package is not None and others:
            raise UsageError(
                f"--from uploads a finished package, and {', '.join(others)} would compile one",
                hint="leave out --from, or all but --publish, --license-file and --public",
            )

"""The adapters of a package: those of `--adapter`, or else those that its provenance names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gemma4_compile.errors import CheckpointError, UsageError
from gemma4_compile.package.artifacts import Build

ADAPTERS = "adapters"
_DIGESTS = ("config", "weights")


def adapters_of(package: Path, given: Sequence[str], build: Build) -> tuple[str, ...]:
    """Names of a package's adapters, as `--adapter` takes them.

    Parameters
    ----------
    given : by the user; none for those on the hub that the package names

    Raises
    ------
    UsageError
        If they are others in number, or must be given since they are directories.
    """
    noted = _noted(build)
    if given and len(given) != len(noted):
        raise UsageError(
            f"--adapter: `{package}` was made with {len(noted) or 'no'} "
            f"adapter{'' if len(noted) == 1 else 's'}, {len(given)} given",
            hint="give those that it was made with, in order" if noted else "leave it out",
        )
    if given or not noted:
        return tuple(given)
    if any(not isinstance(one.get(key), str) for one in noted for key in ("model", "revision")):
        raise UsageError(
            f"`{package}` was made with {len(noted)} adapter{'' if len(noted) == 1 else 's'} of a "
            "directory, which it does not name",
            hint="give the same with --adapter, in order",
        )
    return tuple(f"{one['model']}@{one['revision']}" for one in noted)


def check_adapters(package: Path, build: Build, origin: Mapping[str, object]) -> None:
    """Raise CheckpointError if opened adapters are not those that a package was made with."""
    opened = origin.get(ADAPTERS, [])
    assert isinstance(opened, list), "as `open_source` writes it"
    for i, (noted, found) in enumerate(zip(_noted(build), opened, strict=True), 1):
        if any(noted.get(name) != found.get(name) for name in _DIGESTS):
            raise CheckpointError(
                f"adapter {i} is another than the one that `{package}` was made with",
                hint="give the same files with --adapter, in order",
            )


def _noted(build: Build) -> list[Mapping[str, object]]:
    found = build["source"].get(ADAPTERS, [])
    is_list = isinstance(found, list) and all(isinstance(one, Mapping) for one in found)
    return found if is_list else []

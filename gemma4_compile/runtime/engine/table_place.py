"""Where the table of per-layer embeddings is: on the device, or on the host in its file."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gemma4_compile.errors import UsageError
from gemma4_compile.options.chat import ON_GPU, ON_HOST, PLACES
from gemma4_compile.package.interface import RowTable, row_table
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.row_window import RowWindow
from gemma4_compile.runtime.library.table_rows import TableRows
from gemma4_compile.runtime.package.package import Package

_log = logging.getLogger(__name__)


def table_window(
    package: Package,
    metadata: Mapping[str, object],
    device: Device,
    place: str | None,
    most: int,
    unused_bytes: int = 0,
    most_bytes: int | None = None,
) -> RowWindow | None:
    """A window of the table for calls of at most so many tokens; None where it is on the device.

    Parameters
    ----------
    metadata : what the library's `_metadata` returns, parsed
    place : `gpu` or `host`; None for the device where there is room for it, and else the host
    unused_bytes : of the planned memory, which a shorter context does not need
    most_bytes : of the device, if not all that is free there

    Raises
    ------
    UsageError
        If it is another word, or the model has no table that could be on the host.
    ArtifactError
        If the table's shards or description are damaged, or there is no room for a window.
    """
    if place is not None and place not in PLACES:
        raise UsageError(f"ple: expected {' or '.join(PLACES)}, found {place[:40]!r}")
    table = row_table(metadata)
    if table is None:
        if place == ON_HOST:
            raise UsageError(
                f"`{package.directory}` has no table of per-layer embeddings that could be on the "
                "host: only models such as E2B and E4B have one, in packages of this version on",
                hint="leave out --ple",
            )
        return None
    if place is None:
        place = _place_by_room(table, package, metadata, device, unused_bytes, most_bytes)
    if place == ON_GPU:
        return None
    return RowWindow(device, table, TableRows(table, package.map_weight), most)


def _place_by_room(
    table: RowTable,
    package: Package,
    metadata: Mapping[str, object],
    device: Device,
    unused_bytes: int,
    most_bytes: int | None,
) -> str:
    """The device, unless it has less room than the package is planned to need."""
    free = room_on(device, most_bytes)
    planned = planned_bytes(metadata)
    if free is None or planned is None or (needed := planned - unused_bytes) <= free:
        return ON_GPU
    names = {name for split in table.splits for name in split.tensors}
    records = [record for shard in package.tensor_cache.shards for record in shard.records]
    nbytes = sum(record.nbytes for record in records if record.name in names)
    _log.info(
        "the table of per-layer embeddings stays on the host: there is room for %d bytes on %s, "
        "the plan needs %d, and %d of them are the table's",
        free,
        device.name,
        needed,
        nbytes,
    )
    return ON_HOST


def room_on(device: Device, most_bytes: int | None) -> int | None:
    """What is free on a device, of at most so many bytes; None where it does not say."""
    free = device.free_bytes()
    return free if free is None or most_bytes is None else min(free, most_bytes)


def planned_bytes(metadata: Mapping[str, object]) -> int | None:
    """Memory that the package was planned to need, in its whole context."""
    artifact = metadata.get("artifact")
    resources = artifact.get("resources") if isinstance(artifact, Mapping) else None
    found = resources.get("estimated_device_memory_bytes") if isinstance(resources, Mapping) else 0
    return found if isinstance(found, int) and found > 0 else None

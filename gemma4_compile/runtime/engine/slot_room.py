"""How many slots a server has where nobody says: as many as memory is left for."""

from __future__ import annotations

from gemma4_compile.options.chat import ON_GPU
from gemma4_compile.options.serve import MOST_DEFAULT_SLOTS
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import (
    MemoryNeed,
    Placement,
    free_memory,
    memory_need,
)


def default_slots(
    package: Package, context_length: int | None, drafter: bool, placement: Placement
) -> int:
    """Slots of a server that is told no number; ArtifactError if the device is missing.

    Only of what one leaves with all on the device that nobody places elsewhere: further slots must
    not drive the table of per-layer embeddings or experts away, which would slow one reply alone.
    """
    device = Device.open(package.device)
    library, free = package.library, free_memory(device)
    if library is None or free is None:
        return 1
    own = package.drafter_cache if drafter else None
    further = 0 if own is None else sum(shard.nbytes for shard in own.shards)
    compiled = package.chat_config.context_window_size
    whole = Placement(
        ON_GPU if placement.ple is None else placement.ple,
        1.0 if placement.experts is None else placement.experts,
    )
    need = memory_need(library, package.tensor_cache, compiled, device, whole, further)
    if need is None:
        return 1
    return slots_that_fit(library, need, free, context_length or need.context_length)


def slots_that_fit(library: LibraryRecord, need: MemoryNeed, free: int, context_length: int) -> int:
    """How many slots fit half of what one leaves free: the other half is for what else grows.

    Parameters
    ----------
    need : with one slot
    free : bytes, before anything is loaded
    """
    full = -(-library.amount("kv_full_bytes") * context_length // need.context_length)
    one = max(1, library.amount("kv_sliding_bytes") + full)
    left = max(0, free - need.at(context_length)) // 2
    return min(MOST_DEFAULT_SLOTS, 1 + left // one)

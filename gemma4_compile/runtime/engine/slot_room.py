"""How many slots a server has where nobody says: as many as memory is left for."""

from __future__ import annotations

from gemma4_compile.options.chat import ON_GPU
from gemma4_compile.options.serve import MOST_DEFAULT_SLOTS
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.graph_memory import graph_bytes
from gemma4_compile.runtime.library.steps import graphs_wanted
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import (
    MemoryNeed,
    Placement,
    Wish,
    free_memory,
    memory_need,
)


def default_slots(
    package: Package,
    context_length: int | None,
    drafter: bool,
    placement: Placement,
    most_bytes: int | None = None,
) -> int:
    """Slots of a server that is told no number; ArtifactError if the device is missing.

    Only of what one leaves with all on the device that nobody places elsewhere: further slots must
    not drive the table of per-layer embeddings or experts away, which would slow one reply alone.

    Parameters
    ----------
    most_bytes : of the device, besides what is free there
    """
    device = Device.open(package.device)
    free = free_memory(device)
    if most_bytes is not None:
        free = most_bytes if free is None else min(free, most_bytes)
    if package.library is None or free is None:
        return 1
    whole = Placement(
        ON_GPU if placement.ple is None else placement.ple,
        1.0 if placement.experts is None else placement.experts,
        placement.expert_cache,
    )
    need = package_need(package, device, whole, drafter)
    if need is None:
        return 1
    length = context_length or need.context_length
    return slots_that_fit(package.library, need, free, length)


def package_need(
    package: Package, device: Device, placement: Placement, drafter: bool, sequences: int = 1
) -> MemoryNeed | None:
    """What a package needs of its device; None where an earlier version did not write it."""
    further = drafter_bytes(package, drafter)
    compiled = package.chat_config.context_window_size
    if package.library is None:
        return None
    if graphs_wanted(device, None) and not package.embeds:
        further += graph_bytes(package.chat_config.vocab_size, sequences, drafter=further > 0)
    cache = package.tensor_cache
    return memory_need(package.library, cache, compiled, device, placement, further, sequences)


def loaded_bytes(
    package: Package,
    device: Device,
    wish: Wish,
    found: Placement,
) -> int:
    """What a loaded package takes of its device; 0 where an earlier version did not write it.

    Parameters
    ----------
    wish : as which it was loaded
    found : where its table and experts have come to lie
    """
    # On the CPU both are mapped files, of which a call reads a little.
    placement = wish.placement if device.is_cpu else found
    need = package_need(package, device, placement, wish.drafter, wish.sequences)
    return 0 if need is None else need.at(wish.context_length or need.context_length)


def drafter_bytes(package: Package, drafter: bool) -> int:
    """Of its weights, where it is loaded."""
    own = package.drafter_cache if drafter else None
    return 0 if own is None else sum(shard.nbytes for shard in own.shards)


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

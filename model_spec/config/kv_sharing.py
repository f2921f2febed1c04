"""KV sharing: which layers own keys and values, and whose the others read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def first_shared_layer(layers: int, shared: int) -> int:
    """The first of the last `shared` layers, which own no K and V."""
    return layers - shared


def kv_sources(kinds: Sequence[Hashable], shared: int) -> tuple[int | None, ...]:
    """The layer whose K and V each layer reads.

    Its own number where it owns them; else that of the last owner of its kind, or None without one.

    Parameters
    ----------
    kinds : of attention, by layer
    shared : number of layers at the end that own nothing
    """
    first = first_shared_layer(len(kinds), shared)
    last_owner = {kind: index for index, kind in enumerate(kinds[:first])}
    return (*range(first), *(last_owner.get(kind) for kind in kinds[first:]))

"""Whether a package fits the memory of a device, and what would: asked before anything large moves.

What can lie elsewhere is not counted: the table of per-layer embeddings, of which a call reads a
few rows, and experts where the device reads the host's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.device_kinds import BROWSER
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import (
    ChatConfig,
    Provenance,
    TensorCache,
    read_artifact,
)
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.package.choice import is_for_browsers, native_libraries
from gemma4_compile.runtime.package.drafter_files import is_of_drafter
from gemma4_compile.system.available_memory import available_bytes

SWITCH = "GEMMA4_MEMORY_CHECK"
"""Environment variable that leaves the question out where it is 0."""
_TABLE, _EXPERTS = "embed_tokens_per_layer.", ".experts."
_LEAST_CONTEXT = 256  # of a hint: a shorter one holds no conversation


@dataclass(frozen=True)
class Placement:
    """What a user said of places.

    Attributes
    ----------
    ple : `gpu`, `host`, or None for the choice by room
    experts : share on the device; None for the choice by room
    expert_cache : bytes on the device for those that are the host's; None for the choice by room
    """

    ple: str | None = None
    experts: float | None = None
    expert_cache: int | None = None


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of a package, in bytes.

    Attributes
    ----------
    fixed : weights that must be on the device, the drafter's, rings and intermediate results
    growing : keys and values of full attention in the whole context, of all sequences
    context_length : that the package was compiled for
    sequences : at a time
    rings : of `fixed`, what each sequence has
    """

    fixed: int
    growing: int
    context_length: int
    sequences: int = 1
    rings: int = 0

    def of(self, sequences: int) -> MemoryNeed:
        """With another number of sequences."""
        fixed = self.fixed + (sequences - self.sequences) * self.rings
        growing = self.growing // self.sequences * sequences
        return replace(self, fixed=fixed, growing=growing, sequences=sequences)

    def most_sequences(self, free: int, context_length: int) -> int:
        """As many as fit so many bytes with room for so many tokens each, of those wanted."""
        wanted = range(self.sequences, 0, -1)
        return next((n for n in wanted if self.of(n).at(context_length) <= free), 0)

    def at(self, context_length: int) -> int:
        """Bytes with room for so many tokens."""
        return self.fixed - (-self.growing * context_length // self.context_length)

    def longest(self, free: int) -> int | None:
        """The longest context that fits so many bytes, in steps of 256; None where none does."""
        left = free - self.fixed
        if left < 0:
            return None
        most = self.context_length
        if self.growing:
            most = min(most, left * self.context_length // self.growing)
        if most < min(_LEAST_CONTEXT, self.context_length):
            return None
        return most if most == self.context_length else most - most % _LEAST_CONTEXT


def memory_need(
    library: LibraryRecord,
    cache: TensorCache,
    context_length: int,
    device: Device,
    placement: Placement,
    drafter_bytes: int = 0,
    sequences: int = 1,
) -> MemoryNeed | None:
    """What a library needs; None where an earlier version did not write it.

    Parameters
    ----------
    context_length : that the package was compiled for
    drafter_bytes : of its weights, where it is loaded
    sequences : at a time, each with keys and values of its own
    """
    if not library.memory_bytes:
        return None
    table = experts = 0
    for record in (record for shard in cache.shards for record in shard.records):
        if record.name.startswith(_TABLE):
            table += record.nbytes
        elif _EXPERTS in record.name:
            experts += record.nbytes
    elsewhere = 0 if placement.ple == "gpu" else table
    if device.kind.reads_host:
        share = 0.0 if placement.experts is None else placement.experts
        on_host = round((1 - share) * experts)
        elsewhere += on_host - min(on_host, placement.expert_cache or 0)
    parts = ("weights_bytes", "kv_sliding_bytes", "activation_bytes")
    fixed = sum(library.amount(part) for part in parts) - elsewhere + drafter_bytes
    rings = library.amount("kv_sliding_bytes")
    fixed = max(0, fixed) + (sequences - 1) * rings
    growing = sequences * library.amount("kv_full_bytes")
    return MemoryNeed(fixed, growing, context_length, sequences, rings)


def unused_bytes(
    library: LibraryRecord | None, compiled: int, context_length: int, sequences: int = 1
) -> int:
    """Bytes of keys and values that a context does not need which is shorter than the compiled one.

    Less those of further sequences: negative where they need more.

    Parameters
    ----------
    library : None where an earlier version did not list it
    compiled, context_length : tokens
    """
    if library is None:
        return 0
    growing, rings = (library.amount(name) for name in ("kv_full_bytes", "kv_sliding_bytes"))
    shorter = growing * (compiled - sequences * context_length) // compiled
    return shorter - (sequences - 1) * rings


def free_memory(device: Device) -> int | None:
    """Memory that is free on a device; of the CPU, what this process may still have."""
    return available_bytes() if device.is_cpu else device.free_bytes()


def asks_for_room() -> bool:
    """Return whether what does not fit is refused: the environment may say not to ask."""
    return os.environ.get(SWITCH, "1") != "0"


def check_fits(
    what: str,
    need: MemoryNeed | None,
    device: Device,
    context_length: int | None = None,
    others: str = "",
) -> None:
    """Refuse what would not fit, unless the environment says not to ask.

    Parameters
    ----------
    what : name of the package
    context_length : that is wished for; by default that of the package
    others : further libraries of the package that would fit, in words

    Raises
    ------
    ArtifactError
        If it needs more than is free; the hint is what would fit.
    """
    free = free_memory(device)
    if need is None or free is None or not asks_for_room():
        return
    wanted = min(context_length or need.context_length, need.context_length)
    if need.at(wanted) <= free:
        return
    longest, fewer = need.longest(free), need.most_sequences(free, wanted)
    ways = [f"--context-length {longest}"] if longest is not None and longest < wanted else []
    ways += [f"--slots {fewer}"] if fewer else []
    if not ways and need.sequences > 1 and (alone := need.of(1).longest(free)) is not None:
        ways = [f"--slots 1 --context-length {alone}"]
    if ways:
        fits = f"{' or '.join(ways)} fits"
    else:
        fits = (
            f"its weights alone take {size_in_words(need.of(1).fixed)}: compile its model with a "
            f"smaller recipe or another size, `gemma4-compile MODEL --fit {free // 10**6}MB` "
            "chooses what fits"
        )
    each = "" if need.sequences == 1 else f" for each of {need.sequences} sequences"
    raise ArtifactError(
        f"`{what}` does not fit the memory of {device.describe()}: with {wanted} tokens of context"
        f"{each} it needs {size_in_words(need.at(wanted))}, found {size_in_words(free)} free",
        hint=f"{fits}{others}; or close what else uses it. {SWITCH}=0 in the environment loads it "
        "all the same",
    )


def size_in_words(nbytes: int) -> str:
    """Bytes for people, in units of a thousand."""
    return f"{nbytes / 1e9:,.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:,.1f} MB"


DESCRIPTIONS = (abi.TENSOR_CACHE_FILE, abi.CHAT_CONFIG_FILE)
"""Files that `check_download` reads."""


@dataclass(frozen=True)
class Wish:
    """What a user asked for, as far as memory goes.

    Attributes
    ----------
    device : name of a library, or of a device; None for the fastest that is here
    drafter : it is loaded where the package has one
    pages : a package for browsers can be served without being loaded here
    sequences : at a time
    """

    device: str | None = None
    context_length: int | None = None
    drafter: bool = True
    placement: Placement = Placement()
    pages: bool = False
    sequences: int = 1


def check_download(
    what: str,
    directory: Path,
    provenance: Provenance,
    wish: Wish,
    open_device: Callable[[str], Device] = Device.open,
) -> None:
    """Refuse a package before its weights are fetched, if it would not fit the device it runs on.

    What keeps a package from being run at all is left to `choose_library`, which names it.

    Parameters
    ----------
    directory : holds DESCRIPTIONS

    Raises
    ------
    ArtifactError
        If it would not fit, or a description is damaged.
    """
    cache = TensorCache.from_json(read_artifact(directory / abi.TENSOR_CACHE_FILE))
    compiled = ChatConfig.from_json(read_artifact(directory / abi.CHAT_CONFIG_FILE))
    files = provenance.files.items()
    own = sum(nbytes for name, (nbytes, _) in files if is_of_drafter(name) and wish.drafter)
    found: list[tuple[LibraryRecord, Device]] = []
    for library in native_libraries(provenance):
        if wish.device in (None, library.name, library.device, library.target):
            try:
                found.append((library, open_device(library.device)))
            except ArtifactError:
                continue
    if not found:
        return

    def need(library: LibraryRecord, device: Device) -> MemoryNeed | None:
        length = compiled.context_window_size
        return memory_need(library, cache, length, device, wish.placement, own, wish.sequences)

    def fits(library: LibraryRecord, device: Device) -> bool:
        wanted, free = need(library, device), free_memory(device)
        length = wish.context_length or compiled.context_window_size
        return wanted is not None and free is not None and wanted.at(length) <= free

    (library, device), *rest = found
    others = [one.name for one, on in rest if on != device and fits(one, on)]
    more = f"; or --device {others[0]}, which has room for it" if others else ""
    if wish.pages and any(map(is_for_browsers, provenance.libraries)):
        more += f"; or --device {BROWSER}, which only serves it to browsers"
    check_fits(what, need(library, device), device, wish.context_length, more)

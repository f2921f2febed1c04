"""Keeps beginnings of prompts for the sequences of an engine, within a budget of memory."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable
from collections.abc import Sequence as Keys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.options.prefixes import default_memory
from gemma4_compile.package.artifacts import Provenance, digest
from gemma4_compile.runtime.device.device import ALIGNMENT_BYTES, Device
from gemma4_compile.runtime.device.host_memory import memory_for_copies
from gemma4_compile.runtime.engine.beginnings import KeptCounts, Restored
from gemma4_compile.runtime.engine.chunks import whole_rows
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.prefixes.copy_memory import CopyMemory
from gemma4_compile.runtime.prefixes.memory import PrefixMemory
from gemma4_compile.runtime.prefixes.prefix_file import Layout
from gemma4_compile.runtime.prefixes.prefix_folder import PrefixFolder
from gemma4_compile.runtime.prefixes.saved_rows import (
    SavedRows,
    link,
    restore,
    ring_bytes,
    row_bytes,
    save,
    saved_bytes,
)
from gemma4_compile.runtime.prefixes.spacing import Places, Spacing
from gemma4_compile.runtime.prefixes.tree import Cut, Node
from gemma4_compile.system.available_memory import available_bytes
from gemma4_compile.system.limits import machine_memory_bytes

_log = logging.getLogger(__name__)

READY_TOKENS, READY_BYTES = 1024, 32 << 20
"""Of a reply, for whose rows there is memory before it is left, and how much of it at most: to lock
that takes some 10 ms, in which no reply goes on."""


class HasSequence(Protocol):
    """An engine, or a slot of one, whose sequence may be another after a fork."""

    @property
    def sequence(self) -> Sequence:
        """What holds the tokens."""


class SavedEngine(HasSequence, Protocol):
    """The part of `Engine` that is asked what to keep."""

    device: Device
    prefill_chunk: int

    @property
    def media(self) -> MediaSettings:
        """What the package takes besides text."""


class KeptPrefixes:
    """What the sequences of one engine share.

    Attributes
    ----------
    memory : the states
    whole_images : no prefix ends within a picture
    hits, restored_tokens, saved_states, copied_bytes, placed_tokens : as of `KeptCounts`, of all
        sequences so far
    """

    def __init__(
        self,
        entries: tuple[RowEntry, ...],
        dtype: str,
        device: Device,
        chunk: int,
        budget: int,
        *,
        whole_images: bool = False,
    ) -> None:
        """Begin empty.

        Parameters
        ----------
        entries, dtype : of the engine's state
        chunk : tokens of a prefill chunk
        budget : bytes of the host's memory, at least 1
        """
        self.entries, self.device, self.whole_images = entries, device, whole_images
        self.memory: PrefixMemory[SavedRows] = PrefixMemory(budget, self._left, link(entries))
        self._files: PrefixFolder | None = None
        self._itemsize = np.dtype(dtype).itemsize
        self.spacing = Spacing.of(chunk, ring_bytes(entries, self._itemsize), budget)
        self.hits = self.restored_tokens = self.saved_states = 0
        self.copied_bytes = self.placed_tokens = 0
        self.copies = CopyMemory(device)
        self._late: tuple[Keys[int], SavedRows] | None = None

    def add_later(self, keys: Keys[int], saved: SavedRows) -> None:
        """Keep a prefix once `settle` is called, to which its rows may be on their way.

        `keys` : may have more after those of the prefix by then, but stay else as they are
        """
        self.settle()
        self._late = keys, saved

    def settle(self) -> None:
        """Keep what `add_later` was given."""
        if self._late is None:
            return
        (keys, saved), self._late = self._late, None
        self.device.wait()
        self.add(keys if len(keys) == saved.length else keys[: saved.length], saved)

    def read(self, files: PrefixFolder) -> None:
        """Add what a folder has, and have it hold what is kept from now on."""
        files.read(self.memory.add, self.memory.budget)
        self._files = files
        _log.info("%d prefixes were read", len(self.memory))

    def add(self, keys: Keys[int], saved: SavedRows) -> None:
        """Keep a prefix, if the budget has room for it alone."""
        node = self.memory.add(keys, saved)
        if node is None:
            return
        self.saved_states += 1
        if self._files is not None:
            self._files.write(node, tuple(keys))

    def counts(self) -> KeptCounts:
        """What there is at this moment; of any thread."""
        memory = self.memory
        done = self.saved_states, self.hits, self.restored_tokens
        moved = self.copied_bytes, self.placed_tokens
        return KeptCounts(len(memory), memory.nbytes, memory.budget, *done, *moved)

    def cut(self, prompt: Prompt) -> Cut:
        """How many of a number of tokens of a prompt remain where no picture may be cut."""
        if not (self.whole_images and prompt.runs):
            return lambda count: count
        modalities = prompt.modalities()
        return lambda count: whole_rows(modalities, count)

    def reach(self, prompt: Prompt) -> int:
        """How many tokens of a prompt a sequence that holds none would be given; 0 for few."""
        self.settle()
        found = self.memory.peek(prompt.keys(), self.cut(prompt))
        return 0 if found is None or found.count < self.least_restored else found.count

    @property
    def least_restored(self) -> int:
        """Tokens that a prompt is spared, at least, where it goes on from a prefix."""
        return max(1, self.spacing.least // 2)

    @property
    def lasts(self) -> bool:
        """Return whether a folder holds them for the next start."""
        return self._files is not None

    def has_room(self, length: int) -> bool:
        """Return whether the budget has room for the rows of so many tokens alone."""
        return self.bytes_of(length) <= self.memory.budget

    def bytes_of(self, length: int) -> int:
        """Bytes of the rows of so many tokens alone, at most."""
        return saved_bytes(self.entries, self._itemsize, length)

    def prepare(self) -> None:
        """Have memory for what is kept of a reply: the next prompt's first token waits for that.

        Not where rings are large: to read a prompt takes longer there than to lock memory for them.
        """
        rings = ring_bytes(self.entries, self._itemsize)
        rows = min(row_bytes(self.entries, self._itemsize, READY_TOKENS), READY_BYTES - rings)
        padding = len(self.entries) * ALIGNMENT_BYTES
        sizes = rings + padding, rows + padding
        if rows > 0 and sum(sizes) <= self.memory.budget:
            self.copies.prepare(sizes)

    def close(self) -> None:
        """Write what is still to be written to the folder."""
        try:
            self.settle()
        except RuntimeError as error:  # of a device that has failed before
            _log.warning("the prefix of a reply is not kept: %s", error)
        finally:
            if self._files is not None:
                self._files.close()

    def _left(self, node: Node[SavedRows]) -> None:
        if self._files is not None:
            self._files.remove(node)

    def of(self, engine: HasSequence) -> SequencePrefixes:
        """The beginnings of the sequence that an engine, or a slot of one, has at the time."""
        return SequencePrefixes(self, engine)


class SequencePrefixes:
    """`Beginnings` of one sequence."""

    def __init__(self, kept: KeptPrefixes, engine: HasSequence) -> None:
        """Take what has the sequence."""
        self._kept, self._engine, self._places = kept, engine, Places()
        self._coming: object = None  # what the device may still read
        self._is_left = False  # `leave` was called for the prompt that is to come

    def restore(self, prompt: Prompt, shared: int, placed: int) -> Restored | None:
        """As `Beginnings.restore`."""
        kept, sequence = self._kept, self._engine.sequence
        if not self._is_left:
            kept.settle()
        self._is_left = False
        cut = kept.cut(prompt)
        found = kept.memory.find(prompt.keys(), cut)
        if shared < placed and (found is None or found.count < cut(placed)):
            # What was left has the tokens that the sequence could not go back to, maybe with the
            # rings of a shorter prefix.
            kept.settle()
            found = kept.memory.find(prompt.keys(), cut)
        if found is None or found.count - shared < kept.least_restored:
            return None
        self._end_copies()
        waits = not kept.device.kind.reads_host
        self._coming = None if waits else found
        copied, placed = restore(
            sequence,
            found.state,
            found.count,
            kept.device,
            before=found.before,
            placed=placed,
            waits=waits,
        )
        kept.hits += 1
        kept.restored_tokens += found.count - shared
        kept.copied_bytes += copied
        kept.placed_tokens += max(0, min(placed, found.count) - shared)
        _log.info("%d tokens of a prompt of %d were kept", found.count, len(prompt))
        return Restored(found.count, found.state.owner)

    def _end_copies(self) -> None:
        """Wait for copies that may not have been waited for, as where a prompt was interrupted."""
        if self._coming is not None:
            self._engine.sequence.join_rows()
            self._kept.device.wait()
            self._coming = None

    def places(self, prompt: Prompt, begin: int, turn_ends: Collection[int]) -> Keys[int]:
        """As `Beginnings.places`."""
        kept, keys = self._kept, prompt.keys()
        cut = kept.cut(prompt)
        base, shared, near = kept.memory.look(keys, cut)
        held = 0 if base is None else base.length
        turns: Keys[int] = ()
        if kept.spacing.turns(begin, len(keys)):
            turns = [place for place, one in enumerate(prompt.ids, 1) if one in turn_ends]
        parting = cut(shared)
        if near is not None and near.count >= parting and near.before is None:
            parting = 0  # one that is kept is as good, with its last words taken back
        self._places = kept.spacing.places(begin, len(keys), held, parting, turns)
        return self._places.cuts

    def keep(self, keys: Keys[int], rest: int, owner: Hashable) -> None:
        """As `Beginnings.keep`."""
        if rest == 0:
            self._coming = None  # the reader has a token of what came after them
            self._kept.settle()
        parting = self._places.parting
        if rest == 0 and self._engine.sequence.shortest <= parting < len(keys):
            self._keep_due(keys[:parting], 0, owner)
        self._keep_due(keys, rest, owner)
        if rest == 0:
            with suppress(MemoryError):  # then it is looked for where it is needed
                self._kept.prepare()

    def _keep_due(self, keys: Keys[int], rest: int, owner: Hashable) -> None:
        kept = self._kept
        base = kept.memory.at(keys)
        new = len(keys) - (0 if base is None else base.length)
        if kept.spacing.is_due(len(keys), new, rest, self._places):
            self._save(keys, base, owner, 0 if rest else kept.spacing.chunk)

    def leave(self, keys: Keys[int], shared: int, owner: Hashable, *, later: bool = False) -> None:
        """As `Beginnings.leave`."""
        kept = self._kept
        kept.settle()
        base = kept.memory.at(keys)
        held = max(shared, 0 if base is None else base.length)
        if len(keys) - held >= kept.spacing.least:
            self._save(keys, base, owner, later=later)
            self._is_left = later

    def _save(
        self,
        keys: Keys[int],
        base: SavedRows | None,
        owner: Hashable,
        chunk: int = 0,
        *,
        later: bool = False,
    ) -> None:
        kept = self._kept
        if not kept.has_room(len(keys)):
            _log.info("--prefix-memory has no room for a prefix of %d tokens", len(keys))
            return
        try:
            sequence, length = self._engine.sequence, len(keys)
            where = sequence, kept.entries, kept.device
            waits = not (later and kept.device.kind.reads_host)
            saved = save(*where, base, owner, length, chunk, memory=kept.copies.take, waits=waits)
        except MemoryError:  # a reply is no worse without
            _log.warning("the host has no memory for a prefix of %d tokens", len(keys))
            return
        if later:
            kept.add_later(keys, saved)
        else:
            kept.settle()
            kept.add(keys, saved)


@dataclass(frozen=True)
class PrefixCache:
    """A folder for prefixes, and the name of the package whose they are."""

    path: Path
    package: str

    @classmethod
    def of(cls, path: Path, provenance: Provenance, library: str) -> PrefixCache:
        """A folder for what a library of a package, by its name, has kept."""
        hashes = {name: listed[1] for name, listed in provenance.files.items()}
        return cls(path, digest([hashes, library]))


def nothing_kept(cache: PrefixCache) -> str:
    """What a user should know where `kept_prefixes` found nothing that a library can keep."""
    why = "this package's library has no functions for it: compile the package again"
    return f"--prefix-cache: nothing is kept in `{cache.path}`: {why}"


def kept_prefixes(
    engine: SavedEngine, budget: int, cache: PrefixCache | None = None
) -> KeptPrefixes | None:
    """What an engine's sequences share; None without a budget, or where a library has no copies.

    UsageError as of `PrefixFolder` where there is a cache.
    """
    if budget < 1:
        return None
    try:
        entries, dtype = engine.sequence.row_entries()
    except ArtifactError as error:
        _log.info("no beginnings of prompts are kept: %s", error)
        return None
    chunk, whole, device = engine.prefill_chunk, engine.media.whole_images, engine.device
    kept = KeptPrefixes(entries, dtype, device, chunk, budget, whole_images=whole)
    if cache is not None:
        layout, memory = Layout(cache.package, entries, dtype), partial(memory_for_copies, device)
        kept.read(PrefixFolder(cache.path, layout, memory=memory))
    return kept


def prefix_memory(wanted: int | None) -> int:
    """Bytes for beginnings of prompts: as many as are wished for, or a share of the machine's.

    To be asked once the model is loaded, so that its memory is not taken for free.
    """
    if wanted is not None:
        return wanted
    return default_memory(machine_memory_bytes(), available_bytes())

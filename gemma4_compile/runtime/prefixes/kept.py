"""Keeps beginnings of prompts for the sequences of an engine, within a budget of memory."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from collections.abc import Sequence as Keys
from dataclasses import dataclass

import numpy as np

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.beginnings import End, Restored
from gemma4_compile.runtime.engine.chunks import whole_rows
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.prefixes.memory import PrefixMemory
from gemma4_compile.runtime.prefixes.saved_rows import SavedRows, restore, ring_bytes, save

_log = logging.getLogger(__name__)

LEAST_TOKENS = 256
"""Fewer are forwarded again sooner than kept."""
CHUNKS_APART = 4
LENGTHS_APART = 4  # a quarter of what is held


@dataclass(frozen=True)
class Spacing:
    """How far apart the places are at which states are kept.

    Attributes
    ----------
    least : new tokens, at the ends of prompts and replies
    chunks : tokens, at the ends of chunks, at least
    share : the part of what is held that has to be new at the end of a chunk
    """

    least: int
    chunks: int
    share: float

    @classmethod
    def of(cls, chunk: int, rings: int, budget: int) -> Spacing:
        """By the length of chunks, and what part of the budget the rings of a state take.

        They are not shared: where they take more than a sixteenth of it, chunks' ends are kept at
        greater distances, so that one prompt does not drive all others out.
        """
        scale = max(1.0, 16 * rings / budget)
        return cls(
            min(LEAST_TOKENS, chunk), int(CHUNKS_APART * chunk * scale), scale / LENGTHS_APART
        )

    def is_due(self, end: End, length: int, new: int) -> bool:
        """Return whether to keep a state of `length` tokens, `new` of them since the last one."""
        if end == "chunk":
            return new >= max(self.chunks, self.share * length)
        return new >= self.least


class KeptPrefixes:
    """What the sequences of one engine share.

    Attributes
    ----------
    memory : the states
    restored_tokens, saved_states : counts of all sequences so far
    """

    def __init__(
        self, entries: tuple[RowEntry, ...], dtype: str, device: Device, chunk: int, budget: int
    ) -> None:
        """Begin empty.

        Parameters
        ----------
        entries, dtype : of the engine's state
        chunk : tokens of a prefill chunk
        budget : bytes of the host's memory, at least 1
        """
        self.entries, self.device = entries, device
        self.memory: PrefixMemory[SavedRows] = PrefixMemory(budget)
        self.spacing = Spacing.of(chunk, ring_bytes(entries, np.dtype(dtype).itemsize), budget)
        self.restored_tokens = self.saved_states = 0

    def of(self, sequence: Sequence, *, whole_images: bool = False) -> SequencePrefixes:
        """The beginnings of one sequence."""
        return SequencePrefixes(self, sequence, whole_images=whole_images)


class SequencePrefixes:
    """`Beginnings` of one sequence."""

    def __init__(self, kept: KeptPrefixes, sequence: Sequence, *, whole_images: bool) -> None:
        """Take the sequence, which is there as long as this is used."""
        self._kept, self._sequence, self._whole = kept, sequence, whole_images

    def restore(self, prompt: Prompt, shared: int) -> Restored | None:
        """As `Beginnings.restore`."""
        kept = self._kept
        modalities = prompt.modalities() if self._whole and prompt.runs else []

        def cut(count: int) -> int:
            return whole_rows(modalities, count) if modalities else count

        found = kept.memory.find(prompt.keys(), cut)
        if found is None or found.count - shared < max(1, kept.spacing.least // 2):
            return None
        restore(self._sequence, found.state, found.count, kept.device)
        kept.restored_tokens += found.count - shared
        _log.info("%d tokens of a prompt of %d were kept", found.count, len(prompt))
        return Restored(found.count, found.state.owner)

    def keep(self, keys: Keys[int], end: End, owner: Hashable) -> None:
        """As `Beginnings.keep`."""
        kept = self._kept
        base = kept.memory.at(keys)
        new = len(keys) - (0 if base is None else base.length)
        if kept.spacing.is_due(end, len(keys), new):
            self._save(keys, base, owner)

    def leave(self, keys: Keys[int], shared: int, owner: Hashable) -> None:
        """As `Beginnings.leave`."""
        kept = self._kept
        base = kept.memory.at(keys)
        held = max(shared, 0 if base is None else base.length)
        if len(keys) - held >= kept.spacing.least:
            self._save(keys, base, owner)

    def _save(self, keys: Keys[int], base: SavedRows | None, owner: Hashable) -> None:
        kept = self._kept
        saved = save(self._sequence, kept.entries, kept.device, base, owner)
        kept.saved_states += kept.memory.add(keys, saved) is not None


def kept_prefixes(
    sequence: Sequence, device: Device, chunk: int, budget: int
) -> KeptPrefixes | None:
    """What an engine's sequences share; None without a budget, or where a library has no copies.

    Parameters
    ----------
    sequence : any of the engine's
    """
    if budget < 1:
        return None
    try:
        entries, dtype = sequence.row_entries()
    except ArtifactError as error:
        _log.info("no beginnings of prompts are kept: %s", error)
        return None
    return KeptPrefixes(entries, dtype, device, chunk, budget)

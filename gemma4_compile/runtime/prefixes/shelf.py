"""Replies that are put aside: all rows of a sequence, within the memory for kept prefixes."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Keys
from dataclasses import dataclass

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence_engine import SequenceEngine
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.prefixes.kept import KeptPrefixes
from gemma4_compile.runtime.prefixes.saved_rows import SavedRows, restore, save

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PutAside:
    """A copy of a sequence, and the bytes that were lent for it."""

    rows: SavedRows
    nbytes: int


class HostShelf:
    """`Shelf` in the host's memory: what lies there leaves so much less for kept prefixes.

    No rows are shared with these: they may come from chunks that were cut elsewhere, and a reply
    goes on with the very rows that it had.
    """

    def __init__(self, kept: KeptPrefixes) -> None:
        """Take the memory of kept prefixes."""
        self._kept = kept

    def kept(self, keys: Keys[int]) -> int:
        """As `Shelf.kept`."""
        return self._kept.memory.shared(keys)

    def reach(self, prompt: Prompt) -> int:
        """As `Shelf.reach`."""
        return self._kept.reach(prompt)

    def save(self, engine: TokenEngine) -> PutAside | None:
        """As `Shelf.save`."""
        assert isinstance(engine, SequenceEngine), "of an engine's sequences"
        kept, sequence = self._kept, engine.sequence
        nbytes = kept.bytes_of(sequence.length)
        if not kept.memory.lend(nbytes):
            return None
        try:
            rows = save(sequence, kept.entries, kept.device, None, None)
        except BaseException as error:
            kept.memory.take_back(nbytes)
            if not isinstance(error, MemoryError):
                raise
            _log.warning("the host has no memory to put a reply of %d bytes aside", nbytes)
            return None
        return PutAside(rows, nbytes)

    def restore(self, engine: TokenEngine, copy: object) -> None:
        """As `Shelf.restore`."""
        assert isinstance(copy, PutAside), "it was made here"
        assert isinstance(engine, SequenceEngine), "of an engine's sequences"
        try:
            restore(engine.sequence, copy.rows, copy.rows.length, self._kept.device)
        finally:
            self.drop(copy)

    def drop(self, copy: object) -> None:
        """As `Shelf.drop`."""
        assert isinstance(copy, PutAside), "it was made here"
        self._kept.memory.take_back(copy.nbytes)

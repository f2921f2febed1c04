"""Where states of prompts and replies are kept."""

from __future__ import annotations

from collections.abc import Sequence as Keys
from dataclasses import dataclass

LEAST_TOKENS = 256
"""Fewer are forwarded again sooner than kept."""
CHUNKS_APART = 4
LENGTHS_APART = 4  # a quarter of what is held
LAST_WORDS = 128
"""Tokens of a prompt that are likely its own: a question behind what others have, too."""
CHUNKS_A_TURN = 8
"""Chunks of a prompt for each turn at whose end one is cut, so that it takes hardly longer."""


@dataclass(frozen=True)
class Spacing:
    """How far apart the places are at which states are kept.

    Attributes
    ----------
    least : new tokens, at the ends of prompts and replies, and where prompts part
    chunks : tokens, at the ends of chunks and turns, at least
    share : the part of what is held that has to be new at the end of a chunk
    chunk : tokens of a chunk
    """

    least: int
    chunks: int
    share: float
    chunk: int

    @classmethod
    def of(cls, chunk: int, rings: int, budget: int) -> Spacing:
        """By the length of chunks, and what part of the budget the rings of a state take.

        They are not shared: where they take more than a sixteenth of it, chunks' ends are kept at
        greater distances, so that one prompt does not drive all others out.
        """
        scale = max(1.0, 16 * rings / budget)
        far = int(CHUNKS_APART * chunk * scale)
        return cls(min(LEAST_TOKENS, chunk), far, scale / LENGTHS_APART, chunk)

    def is_due(self, length: int, new: int, rest: int, places: Places) -> bool:
        """Return whether to keep a state of `length` tokens.

        Parameters
        ----------
        new : tokens since the last one that is kept
        rest : tokens of the prompt that are to come
        """
        if rest == 0 or length == places.parting:
            return new >= self.least
        if length in places.turns or LAST_WORDS <= rest < LAST_WORDS + self.chunk:
            return new >= self.chunks  # the next prompt may have other words from here on
        return new >= max(self.chunks, self.share * length)

    def places(self, begin: int, total: int, kept: int, parting: int, turns: Keys[int]) -> Places:
        """Where states of a prompt are to be kept besides at the ends of its chunks.

        A chunk is not cut for one in the last chunk: at the prompt's end rings still reach back.

        Parameters
        ----------
        begin : tokens that are not read
        kept : tokens of the longest state that the prompt begins with
        parting : tokens of the prompt that another one began with, too
        turns : tokens up to the end of each turn, in order
        """
        last = total - self.chunk
        if parting - kept < self.least:
            parting = 0
        able = [end for end in turns if max(begin, kept) + self.chunks <= end <= last]
        most = self.turns(begin, total)
        ends = able[: min(1, most)]  # of instructions, which other prompts have, too
        if most > 1 and able[-1:] and able[-1] - able[0] >= self.chunks:
            ends.append(able[-1])  # what is before the last question
        cuts = {end for end in (parting, *ends) if begin < end <= last}
        return Places(parting, frozenset(ends), tuple(sorted(cuts)))

    def turns(self, begin: int, total: int) -> int:
        """At the ends of how many turns a prompt may be cut that is read from `begin` on."""
        return (total - begin) // (CHUNKS_A_TURN * self.chunk)


@dataclass(frozen=True)
class Places:
    """Where states of a prompt are kept besides at the ends of chunks.

    Attributes
    ----------
    parting : tokens that another prompt began with, too; 0 where a state is near
    turns : tokens up to the ends of turns
    cuts : tokens after which a chunk ends for it, in order
    """

    parting: int = 0
    turns: frozenset[int] = frozenset()
    cuts: tuple[int, ...] = ()

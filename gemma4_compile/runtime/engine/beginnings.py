"""Where the beginning of a prompt is looked for, besides in the state that is to hold it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gemma4_compile.runtime.engine.media_prompt import Prompt

_FIRST_PART, _LONGEST_PART = 64, 4096


@dataclass(frozen=True)
class Restored:
    """A beginning that was kept.

    Attributes
    ----------
    length : tokens that the sequence holds now
    owner : who asked with it first
    """

    length: int
    owner: Hashable


@dataclass(frozen=True)
class KeptCounts:
    """What is kept, and what became of it.

    Attributes
    ----------
    prefixes, nbytes, budget : that are there, their bytes, and how many these may be
    saved : prefixes that were ever kept
    hits, restored_tokens : prompts that went on from one, and the tokens that it spared them
    copied_bytes : that came from the host's memory for these
    placed_tokens : of these tokens, those whose rows of full layers the slot had already
    """

    prefixes: int
    nbytes: int
    budget: int
    saved: int
    hits: int
    restored_tokens: int
    copied_bytes: int = 0
    placed_tokens: int = 0


class Beginnings(Protocol):
    """Keeps what states held, for one sequence, which it knows.

    `Generator.rewind` asks it after that sequence has gone back to what it shares with a prompt
    itself, and `Generator` tells it of every state that a later prompt may begin with. Both are
    called in the thread of the engine, outside a forward.
    """

    def restore(self, prompt: Prompt, shared: int, placed: int) -> Restored | None:
        """Put a longer beginning of `prompt` than its first `shared` tokens into the sequence.

        It is at most all of the prompt but the last token, whose logits are wanted. None, and the
        sequence is as it was, where nothing is kept that is worth it. After an error nothing is
        known of the sequence, and the next prompt clears it.

        Parameters
        ----------
        placed : first tokens of the prompt that the sequence holds, `shared` of them or, where its
            rings do not reach back to them, more: full layers have their rows
        """

    def places(self, prompt: Prompt, begin: int, turn_ends: Collection[int]) -> Sequence[int]:
        """Numbers of tokens of a prompt after which a chunk is to end, in order, for `keep`.

        Parameters
        ----------
        begin : tokens that are not to be read
        turn_ends : ids of the tokens that end turns
        """

    def keep(self, keys: Sequence[int], rest: int, owner: Hashable) -> None:
        """Hear that the sequence holds these, as `Prompt.keys` numbers them; it may keep them.

        A chunk of a prompt was added last, of which `rest` tokens are still to come. The end of a
        prompt is told once the reader has a token: the sequence may hold that, too, begun ahead.
        """

    def leave(
        self, keys: Sequence[int], shared: int, owner: Hashable, *, later: bool = False
    ) -> None:
        """Hear that all of these but the first `shared` are about to go, mostly with a reply.

        Parameters
        ----------
        later : `restore` is called next, for a prompt that waits. What need not be done before its
            first token is done after it
        """


def beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """How many values two sequences of one type begin with alike."""
    most, low, part = min(len(one), len(other)), 0, _FIRST_PART
    while low < most and one[low : low + part] == other[low : low + part]:
        low, part = low + part, min(2 * part, _LONGEST_PART)
    # Whole parts at a time: of long prompts it is asked for every slot, most of which share little.
    low, high = min(low, most), min(low + part, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

"""Sequences of a KV state: the tokens of each, and what is known of its end."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count

import tvm_ffi

from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.row_stream import Rows
from gemma4_compile.runtime.sampling.sampling import TokenChooser
from gemma4_compile.types import Array

CONTEXT_HINT = (
    "say less, or make room: up to the package's own with --context-length, beyond it with "
    "gemma4-compile --context"
)


@dataclass(frozen=True)
class Overflow:
    """A prompt that is too long.

    Attributes
    ----------
    tokens : that it has; of one that was not read to its end, so many at least
    most : that it may have
    """

    tokens: int
    most: int


class ContextFullError(Gemma4CompileError):
    """The conversation does not fit into the context that the state was made for.

    Attributes
    ----------
    overflow : of a prompt whose tokens were counted; else None
    """

    def __init__(
        self, message: str, *, hint: str | None = None, overflow: Overflow | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.overflow = overflow

    @classmethod
    def of_prompt(cls, tokens: int, context_length: int) -> ContextFullError:
        """The error of a prompt that is too long."""
        return cls(
            f"the context is full: this conversation takes {tokens} tokens, and the context holds "
            f"{context_length}",
            hint=CONTEXT_HINT,
            overflow=Overflow(tokens, context_length),
        )


class Sequence:
    """One sequence, which has a slot of the KV state.

    Attributes
    ----------
    context_length : positions that the slot has
    slot : its number; what was recorded for a slot is right for every sequence that has it
    sampler : chooses its tokens in `Engine.step`; None where somebody else does
    chosen : the token that was chosen last and is not in the state; None for none
    logits : on the device, of the token that was added last; None where a draw used them, or it was
        taken back
    added : that token, where a step of several sequences added it, which may keep no logits: see
        `ModelRunner.last_logits`
    version : another number after every change; who remembers something of the sequence's end
        remembers the version as well
    ahead : what added its chosen token before anybody asked for that (`Turns`); None for nothing.
        All else here is as without that token, and whatever changes the sequence takes it back
    tentative : guesses at the end that `keep` decides about; None outside a round
    """

    def __init__(self, kv: KvState, context_length: int, number: int, slot: int) -> None:
        """Take over a sequence of the state, by its number there."""
        self._kv, self._number = kv, number
        self.context_length, self.slot = context_length, slot
        self.sampler: TokenChooser | None = None
        self.chosen: int | None = None
        self.logits: tvm_ffi.Tensor | None = None
        self.added: int | None = None
        self.version = 0
        self.ahead: object | None = None
        self.tentative: int | None = None
        self._removed = False

    @property
    def length(self) -> int:
        """Tokens in the state."""
        self._check_held()
        return self._kv.length(self._number) - (self.ahead is not None)

    @property
    def room(self) -> int:
        """Tokens that may still be added."""
        return self.context_length - self.length

    def check(self, count: int) -> None:
        """Raise ContextFullError where so many do not fit, and UsageError within a round."""
        if self.tentative is not None:
            raise UsageError("the guesses of a round are in the state: call accept first")
        if count > self.room:
            raise ContextFullError(
                f"the context is full: it holds {self.length} of {self.context_length} tokens, and "
                f"{count} more do not fit",
                hint="start a new conversation, or compile with a larger --context",
            )

    def begin(self, count: int, *, by_layer: bool = False) -> None:
        """Make room for so many more tokens, before the call that adds them; as `KvState.begin`."""
        self.version += 1
        self.added = None
        self.take_back()
        self._kv.begin((self._number,), (count,), by_layer=by_layer)

    def end(self, logits: tvm_ffi.Tensor | None = None) -> None:
        """Finish what `begin` began, after the call, which gave these logits of the last token."""
        self._kv.end()
        self.logits, self.chosen = logits, None

    def take_back(self) -> None:
        """Take back the token that was added `ahead`, if any."""
        if self.ahead is not None:
            self.ahead = None
            self._kv.pop(self._number, 1)

    @staticmethod
    def _begin(sequences: Collection[Sequence], counts: Collection[int]) -> None:
        state = next(iter(sequences))._kv
        state.begin(tuple(one._number for one in sequences), tuple(counts))

    @staticmethod
    def begin_ahead(sequences: Collection[Sequence]) -> None:
        """Make room for the token after the last one of each, which none of them tells of yet."""
        Sequence._begin(sequences, (1,) * len(sequences))

    @staticmethod
    def end_ahead(sequences: Collection[Sequence], what: object) -> None:
        """Finish what `begin_ahead` began, after the call, which is known as this."""
        next(iter(sequences))._kv.end()
        for sequence in sequences:
            sequence.ahead = what

    def accept_ahead(self, logits: tvm_ffi.Tensor | None) -> None:
        """Have the chosen token, which was added `ahead`, as after a step of all that gave these.

        `logits` : None where they are of several sequences, and not kept
        """
        self.version += 1
        self.added, self.logits = self.chosen, logits
        self.ahead = self.chosen = None

    @staticmethod
    def begin_step(sequences: Collection[Sequence]) -> None:
        """Make room for one more token in each of several, before the call that adds them."""
        for sequence in sequences:
            sequence.version += 1
            sequence.take_back()
        Sequence._begin(sequences, (1,) * len(sequences))

    @staticmethod
    def begin_rounds(sequences: Collection[Sequence], counts: Collection[int]) -> None:
        """As `begin_step`, for so many tokens of each: as one and guesses, or rows of a prompt."""
        for sequence in sequences:
            sequence.version += 1
            sequence.added = None
            sequence.take_back()
        Sequence._begin(sequences, counts)

    @staticmethod
    def end_rounds(sequences: Collection[Sequence], counts: Collection[int]) -> None:
        """Finish what `begin_rounds` began, after the call; `keep` decides about each's guesses."""
        next(iter(sequences))._kv.end()
        for sequence, tokens in zip(sequences, counts, strict=True):
            sequence.logits = sequence.chosen = None
            sequence.tentative = tokens - 1

    @staticmethod
    def end_step(sequences: Collection[Sequence], tokens: Collection[int]) -> None:
        """Finish what `begin_step` began, after the call; whose logits each gets is set after."""
        next(iter(sequences))._kv.end()
        for sequence, token_id in zip(sequences, tokens, strict=True):
            sequence.logits = sequence.chosen = None
            sequence.added = token_id

    def end_round(self, guesses: int) -> None:
        """As `end`, where so many of the tokens are guesses."""
        self.end()
        self.tentative = guesses

    @staticmethod
    def end_guesses(sequences: Collection[Sequence]) -> None:
        """As `end`, of tokens that were begun for the drafter alone: they are not in the state."""
        next(iter(sequences))._kv.end()
        for sequence in sequences:
            sequence._kv.pop(sequence._number, 1)

    def keep(self, count: int) -> None:
        """End a round: its first `count` guesses stay, and the others go.

        UsageError if there is no round, or it has fewer guesses.
        """
        guesses = self.tentative
        if guesses is None:
            raise UsageError("accept: there is no round of guesses; call advance first")
        if not 0 <= count <= guesses:
            raise UsageError(f"accept: expected 0 to {guesses} guesses, found {count}")
        self.tentative = None
        self.version += 1
        if count < guesses:
            self._kv.pop(self._number, guesses - count)

    def pop(self, count: int) -> bool:
        """Take back the last `count` tokens; False and no change where the rings cannot."""
        self._check_held()
        self.take_back()
        try:
            self._kv.pop(self._number, count)
        except ValueError:
            return False
        self._forget_end()
        return True

    def clear(self) -> None:
        """Forget all tokens; the next one is at position 0."""
        self._check_held()
        self._forget_end()
        self.slot = self._kv.renew(self._number)

    @property
    def shortest(self) -> int:
        """The fewest tokens, besides none, that `pop` can leave."""
        self._check_held()
        self.take_back()
        return self._kv.rows.shortest(self._number)

    def row_entries(self) -> tuple[tuple[RowEntry, ...], str]:
        """What it has rows of, and their dtype; ArtifactError as of `KvState.rows`."""
        return self._kv.rows.entries, self._kv.rows.dtype

    def read_rows(self, entry: int, first: int, rows: Array) -> None:
        """As `KvRows.read`."""
        self._check_held()
        self.take_back()
        self._kv.rows.read(self._number, entry, first, rows)

    def send_rows(self, pieces: Iterable[Rows]) -> None:
        """As `KvRows.send`."""
        self._check_held()
        self.take_back()
        self._kv.rows.send(self._number, pieces)

    def join_rows(self) -> None:
        """As `KvRows.join`."""
        self._kv.rows.join()

    def resume(self, length: int, shortest: int) -> None:
        """As `KvRows.resume`."""
        self._check_held()
        self.take_back()
        self._kv.rows.resume(self._number, length, shortest)
        self._forget_end()

    def fork(self, position: int, number: int) -> Sequence:
        """Another one that begins with the first tokens, as `Sequences.fork`."""
        self.check(0)
        if position > self.length:
            self.take_back()  # else the state would have one token more than there are
        try:
            slot = self._kv.fork(self._number, number, position)
        except ValueError as error:
            raise UsageError(f"fork: {error}") from error
        return Sequence(self._kv, self.context_length, number, slot)

    def remove(self) -> None:
        """Give the slot back; nothing can be done with the sequence any more."""
        self._check_held()
        self._forget_end()
        self._removed = True
        self._kv.remove(self._number)

    def check_held(self, kv: KvState) -> None:
        """Raise UsageError where it was removed, or is of another state than this."""
        self._check_held()
        if kv is not self._kv:
            raise UsageError("the sequence is another engine's: give it to that one")

    def _check_held(self) -> None:
        if self._removed:
            raise UsageError("the sequence was removed: add another one")

    def _forget_end(self) -> None:
        self.version += 1
        self.tentative = self.chosen = self.logits = self.added = self.ahead = None


class Sequences:
    """The sequences of a KV state.

    Attributes
    ----------
    most : how many there may be at a time
    """

    def __init__(self, kv: KvState, context_length: int, device: Device) -> None:
        """Take over a state without sequences, on a device."""
        self.most = kv.sequences
        self._kv, self._context_length, self._device = kv, context_length, device
        self._held: list[Sequence] = []
        self._numbers = count()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._held)

    @property
    def others(self) -> list[Sequence]:
        """All but the engine's own."""
        return self._held[1:]

    def add(self) -> Sequence:
        """Add an empty one.

        Raises
        ------
        UsageError
            If there are as many as there may be.
        ArtifactError
            If the device has no room for its keys and values.
        """
        self._check_room()
        number = next(self._numbers)
        added = Sequence(self._kv, self._context_length, number, self._kv.add(number))
        self._held.append(added)
        return added

    def fork(self, parent: Sequence, position: int | None = None) -> Sequence:
        """Add one that begins with the first `position` tokens of another, by default with all.

        Errors as of `add` and `check`; UsageError, too, where the parent has no such position, or
        its rings do not hold what the token there attends to: they hold it where `pop` could go
        back there.
        """
        self.check(parent)
        self._check_room()
        begin, logits = parent.length if position is None else position, None
        if begin < 0:  # the state takes -1 for the end
            raise UsageError(f"fork: expected a position from 0 on, found {begin}")
        if begin == parent.length and parent.logits is not None:
            # the parent's next step may write where they are: a CUDA graph's result has one place
            logits = self._device.copied(parent.logits)
        added = parent.fork(begin, next(self._numbers))
        added.logits = logits
        if begin == parent.length:
            added.added = parent.added
        self._held.append(added)
        return added

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, so that there is room for another; UsageError for the first one.

        That one is the engine's own, whose drafter knows its slot. Errors as of `check`, too.
        """
        self.check(sequence)
        if sequence is self._held[0]:
            raise UsageError("the engine's own sequence cannot be removed: clear it instead")
        sequence.remove()
        self._held.remove(sequence)

    def check(self, sequence: Sequence) -> None:
        """Raise UsageError for one that was removed, or is another engine's."""
        sequence.check_held(self._kv)

    def _check_room(self) -> None:
        if len(self._held) == self.most:
            raise UsageError(
                f"there is no room for another sequence: the engine holds {self.most}",
                hint="remove one, or make the engine with more `sequences`",
            )

"""One sequence of an engine as generation needs an engine, and a step of several of them."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import Protocol

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.engine.device_sampling import DeviceSampling
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.joint import Riders
from gemma4_compile.runtime.engine.joint_rounds import lets_ride
from gemma4_compile.runtime.engine.media_prompt import Tokens
from gemma4_compile.runtime.engine.rounds import Rounds
from gemma4_compile.runtime.engine.rows_due import Riding
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.sampling.sampling import Float32Array, TokenChooser


class SeveralEngines(Protocol):
    """An engine of several sequences, each of which generation takes for an engine.

    Attributes
    ----------
    most : how many there may be
    """

    most: int

    def add(self) -> TokenEngine:
        """Another one, empty; ArtifactError if the device has no room for its keys and values."""

    def can_fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        """Whether one may have a copy of the first tokens of another, as far as can be told."""

    def fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        """Let one hold a copy of the first tokens of another; False where that cannot be.

        What it held is forgotten then, too, and after an error.
        """

    def step(
        self,
        engines: Listed[TokenEngine],
        last: Listed[int | None],
        choosers: Listed[TokenChooser],
        riding: Riding | None = None,
    ) -> list[int]:
        """Add its token to each, or none after a prompt, and choose the next; as `Engine.step`."""

    def most_riding(self, count: int) -> int:
        """Rows of another's prompt that a forward of tokens of so many takes besides; or 0."""

    def most_guesses(self, count: int) -> int:
        """Guesses of a round of each of so many, at most, where one forward checks all; else 0."""

    def begin_rounds(self, engines: Listed[TokenEngine], last: Listed[int], drafts: int) -> None:
        """Add its token and guesses to each; its own rounds tell of them next."""


class SequenceEngine:
    """A `TokenEngine` over one sequence.

    Attributes
    ----------
    sequence : that one; another after a fork
    """

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        """Take a sequence of an engine."""
        self._engine, self._is_own = engine, sequence is engine.sequence
        self.context_length, self.prefill_chunk = engine.context_length, engine.prefill_chunk
        self.take(sequence)

    def take(self, sequence: Sequence) -> None:
        """Go on with another sequence."""
        self.sequence = sequence
        engine = self._engine
        self._sampling, self._rounds = engine.sampling, engine.rounds
        if not self._is_own:
            self._sampling = DeviceSampling(engine.device, engine.runner, sequence)
            self._rounds = None if engine.rounds is None else engine.rounds.beside(sequence)

    @property
    def length(self) -> int:
        """Tokens in the state."""
        return self.sequence.length

    @property
    def sampling(self) -> DeviceSampling:
        """What draws its tokens on the device."""
        return self._sampling

    @property
    def rounds(self) -> Rounds | None:
        """What guesses tokens ahead; None where there is no drafter."""
        return self._rounds

    def clear(self) -> None:
        """Forget the sequence."""
        self.sequence.clear()

    def pop(self, count: int) -> bool:
        """Take back the last tokens; False where the rings cannot."""
        return self.sequence.pop(count)

    def prefill(self, ids: Tokens) -> Float32Array:
        """As `Engine.prefill`."""
        return self._engine.prefill(ids, self.sequence)

    def decode(self, token_id: int) -> Float32Array:
        """As `Engine.decode`."""
        return self._engine.decode(token_id, self.sequence)

    def read_logits(self) -> Float32Array:
        """As `Engine.read_logits`."""
        return self._engine.read_logits(self.sequence)


class EngineSequences:
    """The sequences of an engine, its own first; see `SeveralEngines`."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine over, with all of its sequences."""
        self.most = engine.sequences.most
        self._engine = engine
        self._has_own = False

    def add(self) -> SequenceEngine:
        """As `SeveralEngines.add`."""
        if not self._has_own:
            self._has_own = True
            return SequenceEngine(self._engine, self._engine.sequence)
        return SequenceEngine(self._engine, self._engine.sequences.add())

    def can_fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        """As `SeveralEngines.can_fork`; never into the engine's own, which keeps its slot."""
        assert isinstance(parent, SequenceEngine), "it was added here"
        assert isinstance(child, SequenceEngine), "it was added here"
        if child.sequence is self._engine.sequence:
            return False
        try:
            return count in (0, parent.length) or count >= parent.sequence.shortest
        except ArtifactError:  # a library of before does not say; `fork` finds out
            return True

    def fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        """As `SeveralEngines.fork`."""
        assert isinstance(parent, SequenceEngine), "it was added here"
        assert isinstance(child, SequenceEngine), "it was added here"
        sequences = self._engine.sequences
        if child.sequence is self._engine.sequence:
            return False
        sequences.remove(child.sequence)
        try:
            forked = sequences.fork(parent.sequence, count)
        except BaseException as error:
            child.take(sequences.add())
            if isinstance(error, UsageError):  # its rings have gone on too far
                return False
            raise
        child.take(forked)
        return True

    def step(
        self,
        engines: Listed[TokenEngine],
        last: Listed[int | None],
        choosers: Listed[TokenChooser],
        riding: Riding | None = None,
    ) -> list[int]:
        """As `SeveralEngines.step`."""
        sequences = []
        for engine, token_id, chooser in zip(engines, last, choosers, strict=True):
            assert isinstance(engine, SequenceEngine), "it was added here"
            engine.sequence.sampler, engine.sequence.chosen = chooser, token_id
            sequences.append(engine.sequence)
        if riding is None:
            return self._engine.step(sequences)
        assert isinstance(riding.engine, SequenceEngine), "it was added here"
        riders = Riders(riding.engine.sequence, riding.ids, riding.ends)
        return self._engine.step(sequences, riders)

    def most_riding(self, count: int) -> int:
        """As `SeveralEngines.most_riding`; 0 as of `lets_ride`."""
        engine = self._engine
        return engine.joint.most_riders(count) if lets_ride(engine.model) else 0

    def most_guesses(self, count: int) -> int:
        """As `SeveralEngines.most_guesses`."""
        joint = self._engine.joint_rounds
        return 0 if joint is None else joint.most_guesses(count)

    def begin_rounds(self, engines: Listed[TokenEngine], last: Listed[int], drafts: int) -> None:
        """As `SeveralEngines.begin_rounds`; errors as of `JointRounds.begin`."""
        joint, rounds = self._engine.joint_rounds, list[Rounds]()
        for engine in engines:
            assert isinstance(engine, SequenceEngine), "it was added here"
            assert engine.rounds is not None, "see `most_guesses`"
            rounds.append(engine.rounds)
        assert joint is not None, "see `most_guesses`"
        joint.begin(rounds, last, drafts)

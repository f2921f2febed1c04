"""An engine that says what a test wrote down, for all that has to do with what a model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt, Tokens
from gemma4_compile.runtime.engine.rows_due import Riding
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.engine.token_engine import DeviceSampling, Rounds, TokenEngine
from gemma4_compile.runtime.sampling.sampling import TokenChooser
from gemma4_compile.tiny.checkpoint import shipped_file

Float32Array = npt.NDArray[np.float32]

END_OF_TURN = 106
VOCABULARY = 1024


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_buffer(shipped_file("tokenizer.json"))


def encode(text: str, tokenizer: Tokenizer | None = None) -> list[int]:
    """Ids of a text; control tokens may be spelled out."""
    encoded = (tokenizer or tiny_tokenizer()).encode(text, add_special_tokens=False)
    return list(encoded.ids)


def greedy(logits: Float32Array) -> int:
    return int(np.argmax(logits))


class ScriptedEngine:
    """After every prompt it says the same tokens, then the end of the turn.

    Attributes
    ----------
    held : ids in the state
    reply : what it says; a test may change it between two replies
    before_step : called before each forward, to wait or to fail
    """

    def __init__(
        self, reply: Sequence[int], *, context_length: int = 512, prefill_chunk: int = 16
    ) -> None:
        self.reply = list(reply)
        self.context_length = context_length
        self.prefill_chunk = prefill_chunk
        self.held: list[int] = []
        self.said = 0
        self.before_step: Callable[[], object] = lambda: None
        self.logits = np.zeros(VOCABULARY, np.float32)

    @property
    def length(self) -> int:
        return len(self.held)

    @property
    def sampling(self) -> DeviceSampling | None:
        return None

    @property
    def rounds(self) -> Rounds | None:
        return None

    def clear(self) -> None:
        self.held = []

    def pop(self, count: int) -> bool:
        self.held = self.held[: len(self.held) - count]
        return True

    def prefill(self, ids: Tokens) -> Float32Array:
        assert len(ids) <= self.prefill_chunk
        self.said = 0
        return self._forward(Prompt.of(ids).ids)

    def decode(self, token_id: int) -> Float32Array:
        self.said += 1
        return self._forward([token_id])

    def read_logits(self) -> Float32Array:
        return self.logits

    def _forward(self, ids: Sequence[int]) -> Float32Array:
        self.before_step()
        self.held += ids
        assert len(self.held) <= self.context_length
        self.logits = self.next_logits()
        return self.logits

    def next_logits(self) -> Float32Array:
        logits = np.zeros(VOCABULARY, np.float32)
        logits[self.reply[self.said] if self.said < len(self.reply) else END_OF_TURN] = 1
        return logits


class RandomEngine(ScriptedEngine):
    """What it says depends on all that it holds, and on nothing else."""

    def __init__(self, *, context_length: int = 512, prefill_chunk: int = 16) -> None:
        super().__init__([], context_length=context_length, prefill_chunk=prefill_chunk)

    def next_logits(self) -> Float32Array:
        return np.random.default_rng(self.held).normal(size=VOCABULARY).astype(np.float32)


class ScriptedSequences:
    """Several scripted engines as the sequences of one.

    Attributes
    ----------
    log : what ran, in order: `read N` for a chunk of engine N, `step N M` for a step of some,
        `step N M + 3 of L` for one that reads rows of a prompt, too, `round N M` for a forward of
        some with guesses
    before_step : called before each of these of several
    joint_guesses : guesses of each in such a forward; 0 for none
    rows : of a step that reads rows of a prompt, too; 0 where none does
    """

    def __init__(self, engines: Sequence[ScriptedEngine]) -> None:
        self.most = len(engines)
        self.engines = engines
        self.added = 0
        self.log: list[str] = []
        self.before_step: Callable[[], object] = lambda: None
        self.joint_guesses = self.rows = 0
        self.forks: list[tuple[int, int, int]] = []
        for number, engine in enumerate(engines):
            self._watch(engine, number)

    def _watch(self, engine: ScriptedEngine, number: int) -> None:
        prefill, decode = engine.prefill, engine.decode

        def watched_prefill(ids: Tokens) -> Float32Array:
            self.log.append(f"read {number}")
            return prefill(ids)

        def watched_decode(token_id: int) -> Float32Array:
            self.log.append(f"alone {number}")
            return decode(token_id)

        engine.prefill, engine.decode = watched_prefill, watched_decode  # type: ignore[method-assign]

    def add(self) -> ScriptedEngine:
        self.added += 1
        return self.engines[self.added - 1]

    def can_fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        return True

    def fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        assert isinstance(parent, ScriptedEngine)
        assert isinstance(child, ScriptedEngine)
        child.held = parent.held[:count]
        self.forks.append((self.engines.index(parent), self.engines.index(child), count))
        return True

    def step(
        self,
        engines: Sequence[TokenEngine],
        last: Sequence[int | None],
        choosers: Sequence[TokenChooser],
        riding: Riding | None = None,
    ) -> list[int]:
        rows = [engine for engine in engines if isinstance(engine, ScriptedEngine)]
        named = ["step", *(str(self.engines.index(row)) for row in rows)]
        reader = None if riding is None else riding.engine
        if riding is not None and isinstance(reader, ScriptedEngine):
            named.append(f"+ {len(riding.ids)} of {self.engines.index(reader)}")
        self.log.append(" ".join(named))
        self.before_step()
        if riding is not None and isinstance(reader, ScriptedEngine):
            reader.said = 0
            reader._forward(riding.ids)
        for row, token in zip(rows, last, strict=True):
            if token is not None:
                row.said += 1
                row._forward([token])
        return [choose(row.logits) for row, choose in zip(rows, choosers, strict=True)]

    def most_riding(self, count: int) -> int:
        return max(self.rows - count, 0) if count else 0

    def most_guesses(self, count: int) -> int:
        return self.joint_guesses

    def begin_rounds(
        self, engines: Sequence[TokenEngine], last: Sequence[int], drafts: int
    ) -> None:
        rows = [engine for engine in engines if isinstance(engine, GuessingEngine)]
        self.log.append(" ".join(["round", *(str(self.engines.index(row)) for row in rows)]))
        self.before_step()
        for row, token in zip(rows, last, strict=True):
            row.check(token, drafts)


class ScriptedShelf:
    """Keeps what scripted engines hold.

    Attributes
    ----------
    room : copies that there is room for
    copies : how many there are
    before_restore : called before each, to fail
    """

    def __init__(self, room: int = 1000) -> None:
        self.room, self.copies = room, 0
        self.before_restore: Callable[[], object] = lambda: None

    def kept(self, keys: Sequence[int]) -> int:
        return 0

    def reach(self, prompt: Prompt) -> int:
        return 0

    def save(self, engine: TokenEngine) -> tuple[list[int], int] | None:
        assert isinstance(engine, ScriptedEngine)
        if self.copies == self.room:
            return None
        self.copies += 1
        return list(engine.held), engine.said

    def restore(self, engine: TokenEngine, copy: object) -> None:
        assert isinstance(engine, ScriptedEngine)
        assert isinstance(copy, tuple)
        self.drop(copy)
        self.before_restore()
        engine.held, engine.said = copy

    def drop(self, copy: object) -> None:
        del copy
        self.copies -= 1


class LogitRows:
    """Logits of several tokens."""

    def __init__(self, logits: list[Float32Array]) -> None:
        self._logits = logits

    def read(self, row: int) -> Float32Array:
        return self._logits[row]


class GuessingEngine(ScriptedEngine):
    """As `ScriptedEngine`, with a drafter whose guesses are what it will say."""

    most_drafts = 4
    drafts: int | None = 4
    checked: tuple[list[int], LogitRows] | None = None

    @property
    def rounds(self) -> Rounds:
        return self

    @property
    def is_checked(self) -> bool:
        return self.checked is not None

    def check(self, token_id: int, drafts: int) -> None:
        """Run a round in a forward of several, which it tells of next."""
        following = [*self.reply, *[END_OF_TURN] * (1 + drafts)][self.said + 1 :]
        guesses = following[:drafts]
        self._guessed = len(guesses)
        rows = [ScriptedEngine.decode(self, token) for token in (token_id, *guesses)]
        self.checked = guesses, LogitRows(rows)

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], LogitRows]:
        if self.checked is not None:
            checked, self.checked = self.checked, None
            return checked
        following = [*self.reply, *[END_OF_TURN] * (1 + drafts)][self.said + 1 :]
        guesses = following[:drafts]
        self._guessed = len(guesses)
        return guesses, LogitRows([self.decode(token) for token in (token_id, *guesses)])

    def accept(self, count: int) -> None:
        wrong = self._guessed - count
        self.said -= wrong
        self.pop(wrong)

    def advance_drawn(self, *_: object) -> tuple[list[int], list[int]]:
        raise AssertionError("it draws nothing by itself")


def scripted_generator(engine: ScriptedEngine, media: MediaSettings | None = None) -> Generator:
    return Generator(engine, tiny_tokenizer(), frozenset({1, END_OF_TURN}), media)


def scripted_slots(*engines: ScriptedEngine, media: MediaSettings | None = None) -> Slots:
    """A slot for each of some engines."""
    return slots_of(ScriptedSequences(engines), media)


def slots_of(
    sequences: ScriptedSequences,
    media: MediaSettings | None = None,
    shelf: ScriptedShelf | None = None,
) -> Slots:
    def make(engine: TokenEngine) -> Generator:
        assert isinstance(engine, ScriptedEngine)
        return scripted_generator(engine, media)

    return Slots(sequences, make, shelf=shelf)

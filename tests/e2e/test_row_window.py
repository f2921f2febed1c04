"""The table of per-layer embeddings on the host: logits are the same, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.joint import Riders
from gemma4_compile.runtime.engine.media_prompt import Prompt, Rows
from gemma4_compile.runtime.sampling.sampling import Float32Array, Sampler, SamplingOptions
from tests.media_files import picture, sound
from tests.seeing_engine import Seeing
from tests.several_sequences import emptied
from tests.web.compiled import DRAFTED, Compiler

CHUNK = 24
VOCABULARY = 1024


@dataclass(frozen=True)
class Both:
    """The same package with its table on the device, and on the host."""

    device: Any
    host: Any

    def same(self, action: Callable[[Any], list[Float32Array]]) -> None:
        """Do something on both; logits are the same."""
        expected, found = action(self.device), action(self.host)
        assert len(expected) == len(found) > 0
        for one, other in zip(expected, found, strict=True):
            assert np.isfinite(one).all()
            assert np.array_equal(one, other)


@pytest.fixture(scope="module")
def engines(compiled: Compiler) -> Both:
    package = compiled(DRAFTED, "cpu", "q4f16")
    return Both(
        *(Engine.open(package, ple=place, sequences=3, drafts=4) for place in ("gpu", "host"))
    )


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


@pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_prompts_and_tokens(count: int, engines: Both) -> None:
    def action(engine: Engine) -> list[Float32Array]:
        engine.clear()
        found = [engine.prefill(ids_of(count, count))]
        return found + [engine.decode(token) for token in (0, VOCABULARY - 1, *ids_of(3, 1))]

    engines.same(action)


def test_the_table_is_not_loaded(engines: Both) -> None:
    sizes = [
        sum(int(np.prod(one.shape)) for one in set(engine.model.params))
        for engine in (engines.device, engines.host)
    ]
    assert sizes[0] - sizes[1] == (VOCABULARY - CHUNK) * (256 // 8 + 256 // 32)


@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_rounds_of_guesses(drafts: int, engines: Both) -> None:
    def action(engine: Engine) -> list[Float32Array]:
        engine.clear()
        found = [engine.prefill(ids_of(CHUNK, 3))]
        assert engine.rounds is not None
        for token in ids_of(4, 4):
            guesses, rows = engine.rounds.advance(token, drafts)
            found += [rows.read(row).copy() for row in range(len(guesses) + 1)]
            engine.rounds.accept(len(guesses) // 2)
        drawn = engine.rounds.advance_drawn(5, drafts, (1.0, 0.9), lambda n: [0.5] * n)
        engine.rounds.accept(0)
        return [*found, *(np.array(tokens, np.float32) for tokens in drawn)]

    engines.same(action)


def test_sequences_in_turns(engines: Both) -> None:
    def action(engine: Engine) -> list[Float32Array]:
        emptied(engine)
        engine.prefill(ids_of(CHUNK + 3, 5))
        others = [engine.sequences.add(), engine.sequences.fork(engine.sequence, 9)]
        found = [engine.prefill(ids_of(7 + n, 6 + n), one) for n, one in enumerate(others)]
        for seed, one in enumerate([engine.sequence, *others]):
            one.sampler = Sampler(SamplingOptions(temperature=1.0), seed)
        steps = [engine.step([engine.sequence, *others]) for _ in range(4)]
        found += [
            engine.device.read(one.logits).ravel() for one in others if one.logits is not None
        ]
        assert len(found) == 4
        return [*found, np.array(steps, np.float32)]

    engines.same(action)


def test_a_prompts_rows_beside_the_tokens_of_others(engines: Both) -> None:
    def action(engine: Engine) -> list[Float32Array]:
        emptied(engine)
        every = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
        for seed, one in enumerate(every):
            engine.prefill(ids_of(5 + CHUNK * seed, 10 + seed), one)
        *writers, reader = every
        tokens = [0, VOCABULARY - 1]
        for seed in range(3):
            rows = engine.joint.add_beside(writers, tokens, Riders(reader, ids_of(5, 13 + seed)))
            rows.keep(0, len(writers))
        return [engine.read_logits(one) for one in every]

    engines.same(action)


def test_rounds_of_several_in_one_forward(engines: Both) -> None:
    def action(engine: Engine) -> list[Float32Array]:
        emptied(engine)
        every = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
        for seed, one in enumerate(every):
            engine.prefill(ids_of(5 + CHUNK * seed, 20 + seed), one)
        assert engine.rounds is not None
        assert engine.joint_rounds is not None
        rounds = [engine.rounds, *map(engine.rounds.beside, every[1:])]
        drafts, found = engine.joint_rounds.most_guesses(len(every)), []
        for step in range(3):
            tokens = ids_of(len(every), 23 + step)
            engine.joint_rounds.begin(rounds, tokens, drafts)
            for own, token in zip(rounds, tokens, strict=True):
                guesses, rows = own.advance(token, drafts)
                assert len(guesses) == (drafts if step else 0)
                found += [rows.read(row).copy() for row in range(len(guesses) + 1)]
                own.accept(len(guesses) // 2)
        return found

    engines.same(action)


def test_tokens_that_the_device_draws(engines: Both) -> None:
    def action(engine: Engine) -> list[Float32Array]:
        engine.clear()
        engine.prefill(ids_of(5, 8))
        numbers = np.random.default_rng(9)
        tokens = engine.sampling.sampled(1.0, 0.95, numbers.random)
        drawn = [next(tokens) for _ in range(6)]
        tokens.close()
        return [np.array(drawn, np.float32), engine.decode(drawn[-1])]

    engines.same(action)


def test_pictures_and_sounds_have_the_row_of_the_pad_token(tiny_package: Path) -> None:
    def action(seeing: Seeing) -> list[Float32Array]:
        seeing.reset()
        parts: list[list[int] | Rows] = [
            [2, 5, 7],
            Rows(picture(7), 1017, 1019, 1021),
            Rows(sound(30), 1018, 1020, 1022),
        ]
        found = [seeing.engine.prefill(Prompt.joined([*parts, [9, 11]]))]
        return [*found, seeing.engine.decode(5)]

    Both(Seeing(tiny_package, "gpu"), Seeing(tiny_package, "host")).same(action)


def test_a_place_that_is_none(tiny_package: Path) -> None:
    with pytest.raises(UsageError, match="ple: expected gpu or host, found 'disk'"):
        Engine.open(tiny_package, ple="disk")

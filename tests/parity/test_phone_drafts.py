"""A drafter's guesses on a checkpoint for phones: rows of a round are those of single tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, make_sampler
from tests import drafters, models, packages, phone_checkpoints
from tests.drafted import knows, let_guess

pytestmark = [pytest.mark.parity, pytest.mark.slow]

COUNT, DRAFTS = 24, 3
ROUNDS = (1, 9, 4, 2, 6)
"""Rows of a step."""


@pytest.fixture(scope="module", params=["float", "int8"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phone")
    phone_checkpoints.write(folder / "target")
    drafter = drafters.write_drafter(folder / "drafter", "e2b")
    asked = CompileRequest(
        model=str(folder / "target"),
        target="cpu",
        quant="mobile",
        output=folder / "package",
        context_length=96,
        prefill_chunk=12,
        activations=request.param,
        drafter=str(drafter.path),
    )
    packages.compile_small(asked)
    return folder / "package"


def test_replies_with_guesses_are_those_without(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Package.open(package).load_tokenizer()
    prompt = [int(token) for token in models.prompt(10, seed=3)]

    def reply(drafts: int | None) -> tuple[list[int], int]:
        engine = Engine.open(package)
        assert engine.rounds is not None
        engine.rounds.drafts = drafts
        if drafts:
            let_guess(monkeypatch, engine, knows([*prompt, *plain], wrong=0.3))
        generator = Generator(engine, tokenizer, frozenset(), engine.media)
        generator.stop_ids = frozenset()
        sampler = make_sampler(SamplingOptions(temperature=0.0), 1)
        generation = generator.start(prompt, sampler, max_tokens=COUNT, plain=True)
        for _ in generation:
            pass
        return generation.token_ids, generator.drafting.accepted

    plain: list[int] = []
    plain, accepted = reply(0)
    assert accepted == 0
    drafted, accepted = reply(DRAFTS)
    assert drafted == plain
    assert accepted > COUNT // 4
    assert len(set(plain)) > np.sqrt(COUNT), "it does not repeat one token"


def test_rows_of_a_round_have_the_bits_of_single_tokens(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last bits of norms and attention are rounded away: no value of these is at an edge."""
    text = models.prompt(20 + sum(ROUNDS), seed=3).tolist()
    plain, engine = (Engine.open(package) for _ in range(2))
    for one in (plain, engine):
        one.prefill(text[:20])
    let_guess(monkeypatch, engine, lambda _, at, count: text[at + 1 : at + 1 + count])
    rounds, begin = engine.rounds, 20
    assert rounds is not None
    for count in ROUNDS:
        expected = [np.array(plain.decode(token)) for token in text[begin : begin + count]]
        guesses, rows = rounds.advance(text[begin], count - 1)
        assert len(guesses) == count - 1
        for row, logits in enumerate(expected):
            np.testing.assert_array_equal(rows.read(row), logits, err_msg=f"row {row} of {count}")
        rounds.accept(count - 1)
        begin += count

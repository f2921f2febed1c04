"""A drafter's guesses on a checkpoint for phones: rounds of several rows give the same replies."""

from __future__ import annotations

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


@pytest.mark.parametrize("activations", ["float", "int8"])
def test_replies_with_guesses_are_those_without(
    activations: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("phone")
    phone_checkpoints.write(folder / "target")
    drafter = drafters.write_drafter(folder / "drafter", "e2b")
    request = CompileRequest(
        model=str(folder / "target"),
        target="cpu",
        quant="mobile",
        output=folder / "package",
        context_length=96,
        prefill_chunk=12,
        activations=activations,
        drafter=str(drafter.path),
    )
    packages.compile_small(request)
    tokenizer = Package.open(folder / "package").load_tokenizer()
    prompt = [int(token) for token in models.prompt(10, seed=3)]

    def reply(drafts: int | None) -> tuple[list[int], int]:
        engine = Engine.open(folder / "package")
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

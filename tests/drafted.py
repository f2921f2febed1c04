"""Packages of small random models with small random drafters, compiled once a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, make_sampler
from gemma4_compile.targets.spec import NATIVE
from tests import drafters, models, packages, routing
from tests.drafters import Drafter
from tests.shared import made_once, shared_folder

GREEDY = SamplingOptions(temperature=0.0)
Guess = Callable[[int, int, int], list[int]]
CONTEXT, CHUNK = 256, 12  # a chunk of nine tokens and more, and every window wraps


@dataclass(frozen=True)
class Drafted:
    """A package, and what it was made of."""

    kind: str
    package: Path
    target: models.Checkpoint
    drafter: Drafter


def drafted_package(
    factory: pytest.TempPathFactory,
    kind: str,
    recipe: str = "f32",
    activations: str = "float",
    target: str = "cpu",
    limits: str = "default",
    heads: tuple[bool, bool] = (False, False),
    float16: str = NATIVE,
    key_bytes: int | None = None,
) -> Drafted:
    """Compile a kind of `models.KINDS` with its drafter.

    `heads` says which of the two, target and drafter, have a head of their own; `key_bytes` as of
    `packages.divided_keys`.
    """
    untied_target, untied_drafter = heads
    text = {**models.KINDS[kind], "tie_word_embeddings": not untied_target}
    folder = factory.mktemp(f"drafted-{kind}")
    weights = models.random_weights(text) if kind == "moe" else None
    if weights is not None and (activations == "int8" or recipe.endswith("f16")):
        # Where vectors are rounded, two ways of summing may choose either of two near experts.
        weights = routing.decided_by_token(weights)
    checkpoint = models.write_checkpoint(folder / "target", text, weights=weights)
    values = drafters.drafter_config(kind, tied=not untied_drafter)
    drafter = drafters.write_drafter(folder / "drafter", kind, values=values)

    def compile_it(output: Path) -> None:
        request = CompileRequest(
            model=str(checkpoint.path),
            target=target,
            quant=recipe,
            output=output,
            context_length=CONTEXT,
            prefill_chunk=CHUNK,
            activations=activations,
            limits=limits,
            float16=float16,
            drafter=str(drafter.path),
        )
        # Host code of a GPU's library only launches kernels. Of the CPU's packages two are as users
        # get them, which takes twice as long: the usual one, and one that draws 10,000 tokens.
        is_long = kind in ("e2b", "unified") and heads == (False, False) and key_bytes is None
        is_usual = target == "cpu" and is_long
        compiler = compile_model if is_usual else packages.compile_small
        with packages.divided_keys(key_bytes), packages.without_known_answers():
            compiler(request, packages.Silent())

    name = f"{kind}-{recipe}-{activations}-{target}-{limits}-{heads}-{float16}-{key_bytes}"
    package = made_once(shared_folder(factory) / "drafted" / name, compile_it)
    return Drafted(kind, package, checkpoint, drafter)


class Replies:
    """Replies of one engine, one after the other on the same state."""

    def __init__(self, engine: Engine, made: Drafted, drafts: int | None = None) -> None:
        if engine.rounds is not None:
            engine.rounds.drafts = drafts
        self.engine = engine
        package = Package.open(made.package)
        self.generator = Generator(engine, package.load_tokenizer(), frozenset(), engine.media)
        self.generator.stop_ids = frozenset()  # not even one that asks for a tool

    def start(
        self, prompt: Sequence[int], options: SamplingOptions = GREEDY, seed: int = 1, **rest: int
    ) -> Generation:
        sampler = make_sampler(options, seed)
        return self.generator.start(prompt, sampler, max_tokens=rest.get("count"), plain=True)

    def reply(
        self, prompt: Sequence[int], options: SamplingOptions = GREEDY, seed: int = 1, **rest: int
    ) -> list[int]:
        generation = self.start(prompt, options, seed, **rest)
        for _ in generation:
            pass
        return generation.token_ids


def knows(text: Sequence[int], wrong: float, seed: int = 0) -> Guess:
    """Guesses that come true but for a share of them, of a text that is known."""
    rng = np.random.default_rng(seed)

    def guess(token_id: int, position: int, count: int) -> list[int]:
        assert text[position] == token_id, "a guess begins with the token at its position"
        true = list(text[position + 1 : position + 1 + count])
        true += [5] * (count - len(true))
        return [int(rng.integers(256)) if rng.random() < wrong else token for token in true]

    return guess


def let_guess(monkeypatch: pytest.MonkeyPatch, engine: Engine, guess: Guess) -> None:
    assert engine.rounds is not None, "a package with a drafter"
    drafter = engine.rounds.drafter

    def put(token_id: int, position: int, count: int) -> None:
        drafter.put([token_id, *guess(token_id, position, count)])

    monkeypatch.setattr(drafter, "guess", put)

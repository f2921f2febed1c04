"""Parts of the cases: rounds of guesses, and tokens that are read while the next step runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.next_token import NextToken
from gemma4_compile.runtime.engine.rounds import Rounds
from tests.cuda.launches import CUDA, PROMPT, Step, launches_of

DRAWS = 4  # launches of a round that are in no graph: of each kernel one for all rows


def read_four(engine: Engine, tokens: Iterator[int], held: int) -> None:
    """Read tokens, the step after each of which is launched before it is read."""
    for number in range(4):
        CUDA.clear()
        next(tokens)
        assert engine.length == held + number + 1, "the token that was read, and no other"
        assert CUDA.downloads == 1 or number < 2, "later ones record nothing"
    launches = CUDA.launches()
    assert all(launch.from_graph for launch in launches)
    assert launches[0].kernel[0].startswith("softmax"), "drawn first, then the step"
    assert len(launches) > 50


def begin_rounds(package: Path, ple: str | None = None, sequences: int = 1) -> Engine:
    engine = Engine.open(package, ple=ple, sequences=sequences)
    engine.prefill(PROMPT)
    rounds_of(engine).advance(4, 0)  # for the state after a token
    rounds_of(engine).accept(0)
    return engine


def rounds_of(engine: Engine) -> Rounds:
    assert engine.rounds is not None
    return engine.rounds


def drawn_round(engine: Engine, drafts: int, accepted: int, of: Rounds | None = None) -> Step:
    rounds = of or rounds_of(engine)

    def advance() -> None:
        guesses, drawn = rounds.advance_drawn(5, drafts, (1.0, 0.9), lambda rows: [0.5] * rows)
        assert (len(guesses), len(drawn)) == (drafts, drafts + 1)
        rounds.accept(accepted)

    return launches_of(advance)


def following(way: NextToken, token_id: int) -> Iterator[int]:
    while True:
        token_id = way.after(token_id)
        yield token_id

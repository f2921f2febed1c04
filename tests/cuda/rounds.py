"""Parts of the cases: rounds of guesses, and tokens that are read while the next step runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.next_token import NextToken
from gemma4_compile.runtime.engine.rounds import Rounds
from tests.cuda.launches import CUDA, PROMPT, Step, launches_of
from tests.cuda.library import Launch

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
    assert launches[0].kernel[0].startswith("draw_partials"), "drawn first, then the step"
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


def of_several(step: Step) -> list[Launch]:
    """The launches that find keys by slot."""
    return [launch for launch in step.replayed if launch.kernel[0].startswith("joint")]


def shared_rounds(package: Path) -> None:
    """Guesses of several sequences, and the model on them, are graphs for numbers of rows.

    Whosever they are; guesses are read once, and the draw from rows behind others is from a copy.
    """
    engine = Engine.open(package, sequences=3)
    joint = engine.joint_rounds
    assert joint is not None
    assert joint.most_guesses(2) == 3
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    rounds = [rounds_of(engine), *map(rounds_of(engine).beside, sequences[1:])]
    for sequence in sequences:
        engine.prefill(PROMPT, sequence)

    waits = list[int]()

    def run(*places: int) -> Step:
        chosen = [rounds[place] for place in places]

        def begin() -> None:
            joint.begin(chosen, [5] * len(chosen), 3 if len(chosen) == 2 else 1)
            waits.append(CUDA.downloads)

        step = launches_of(begin)
        for one in chosen:
            guesses, drawn = one.advance_drawn(5, 3, (1.0, 0.9), lambda rows: [0.5] * rows)
            assert len(drawn) == len(guesses) + 1
            one.accept(0)
        return step

    run(0, 1, 2)  # for the states after a token
    recorded = run(0, 1)
    assert len(recorded.direct) > 50, "guesses of two slots and eight rows: issued, and recorded"
    assert of_several(recorded)
    assert joint.guesses is not None
    assert 0 < joint.guesses.kernels < len(recorded.replayed)
    for places in ((1, 0), (2, 1)):
        step = run(*places)
        assert (step.direct, step.replayed) == ([], recorded.replayed), "the same addresses"
        assert waits[-1] == 1
    assert [one.length - len(PROMPT) for one in sequences] == [3, 4, 2]
    assert all(one.tentative is None for one in sequences)


def rounds_refused(package: Path) -> None:
    """Whatever refuses, the host issues the launches."""
    engine = begin_rounds(package)
    CUDA.fail("cudaGraphInstantiate")
    for _ in range(2):
        step = drawn_round(engine, 3, 3)
        assert len(step.direct) > 50
        assert not step.replayed
    CUDA.fail("")
    assert not drawn_round(engine, 3, 3).replayed, "it is not tried again"


def plain_rounds(package: Path) -> None:
    """Without graphs ids are waited for once, too."""
    engine = begin_rounds(package)
    for _ in range(2):
        step = drawn_round(engine, 3, 1)
        assert CUDA.downloads == 1
        assert not step.replayed

"""Rounds of guesses on a package in this process: what its drafter and its model return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile.runtime.device import Device
from gemma4_compile.runtime.engine import Engine
from gemma4_compile.runtime.native_library import Forward

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

GUESSES = 4  # of a round


@dataclass(frozen=True)
class PackageGuess:
    """One call of `draft_token`.

    Attributes
    ----------
    token : the guess
    state : (hidden_size,) for the next guess
    logits : of the candidates
    candidates : their ids; None where every token is one
    """

    token: int
    state: Float32Array
    logits: Float32Array
    candidates: IntArray | None


@dataclass(frozen=True)
class Round:
    """Guesses after the token at a position, and the model's run on the text from there on.

    Attributes
    ----------
    position : of the token
    logits : (rows, vocab_size) after it and after each token of the text that follows it
    states : (rows, hidden_size) of them
    """

    position: int
    guesses: tuple[PackageGuess, ...]
    logits: Float32Array
    states: Float32Array


class _Recorded:
    """The function of the drafter, whose results are kept."""

    def __init__(self, function: Forward, device: Device) -> None:
        self._function, self._device = function, device
        self.guesses: list[PackageGuess] = []

    def __call__(self, *arguments: tvm_ffi.Object) -> tvm_ffi.Array[tvm_ffi.Tensor]:
        result = self._function(*arguments)
        token, state, logits, *candidates = (self._device.read(one) for one in result)
        chosen = candidates[0].reshape(-1) if candidates else None
        guess = PackageGuess(int(token[0]), state.reshape(-1), logits.reshape(-1), chosen)
        self.guesses.append(guess)
        return result


def run_rounds(directory: Path, ids: Sequence[int], runs: Sequence[range]) -> list[Round]:
    """Guess along a text; errors as those of `Engine`.

    The model runs on tokens of the text in the place of the guesses, and keeps some of them, each
    round another number: so every row of `verify_tokens` is seen, after every number of them.

    Parameters
    ----------
    runs : positions whose logits are looked at; what is before them is the prompt
    """
    engine = Engine.open(directory, graphs=False, drafts=GUESSES)
    drafter = engine._drafter
    assert drafter is not None, "a package with a drafter"
    recorded = drafter._draft = _Recorded(drafter._draft, engine.device)
    guess = drafter.guess

    def text_instead(token_id: int, position: int, count: int) -> list[int]:
        guess(token_id, position, count)
        return list(ids[position + 1 : position + 1 + count])

    drafter.guess = text_instead  # type: ignore[method-assign]  # of this one object
    found: list[Round] = []
    for run in runs:
        engine.clear()
        engine.prefill(ids[: run.start])
        position, rounds = run.start, 0
        while position < run.stop:
            recorded.guesses.clear()
            wanted = min(GUESSES, run.stop - 1 - position)
            given, rows = engine.advance(ids[position], wanted)
            states = drafter.states
            logits = np.stack([rows.read(row) for row in range(len(given) + 1)])
            found.append(Round(position, tuple(recorded.guesses), logits, states))
            accepted = min(rounds % (GUESSES + 1), len(given))
            engine.accept(accepted)
            position += accepted + 1
            rounds += 1
    return found

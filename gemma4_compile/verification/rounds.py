"""Rounds of drafts on a package, in this process or on WebGPU: what drafter and model return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.library.native_library import Forward
from gemma4_compile.runtime.library.round_steps import PlainRounds
from gemma4_compile.runtime.package.choice import main_library
from gemma4_compile.verification.runners import find_node_modules, on_dawn

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

DRAFTS = 4  # of a round


@dataclass(frozen=True)
class PackageDraft:
    """One call of `draft_token`.

    Attributes
    ----------
    token : the draft
    state : (hidden_size,) for the next draft
    logits : of the candidates
    candidates : their ids; None where every token is one
    """

    token: int
    state: Float32Array
    logits: Float32Array
    candidates: IntArray | None


@dataclass(frozen=True)
class Round:
    """Drafts after the token at a position, and the model's run on the text from there on.

    Attributes
    ----------
    position : of the token
    logits : (rows, vocab_size) after it and after each token of the text that follows it
    states : (rows, hidden_size) of them
    """

    position: int
    drafts: tuple[PackageDraft, ...]
    logits: Float32Array
    states: Float32Array


@dataclass(frozen=True)
class Move:
    """A round that is asked for.

    Attributes
    ----------
    position : of its first token
    drafts : how many, and tokens of the text after the first
    kept : tokens that stay, the first one among them
    begins : what is before the position is a prompt; otherwise it is there
    """

    position: int
    drafts: int
    kept: int
    begins: bool


Rounds = Callable[[Path, Sequence[int], Sequence[Move]], list[Round]]


def plan_rounds(runs: Sequence[range], chunk: int) -> list[Move]:
    """Rounds along a text.

    The model runs on tokens of the text in the place of the drafts, and keeps some of them, each
    round another number: so every row of `verify_tokens` is seen, after every number of them. The
    first round of a run has no drafts: the model's state before it is not known.

    Parameters
    ----------
    runs : positions whose logits are looked at; what is before them is the prompt
    chunk : tokens that a forward of the package takes
    """
    found = []
    for run in runs:
        position, index = run.start, 0
        while position < run.stop:
            drafts = min(DRAFTS, chunk - 1, run.stop - 1 - position) if index else 0
            kept = 1 + min(index % (DRAFTS + 1), drafts)
            found.append(Move(position, drafts, kept, begins=not index))
            position += kept
            index += 1
    return found


class _Recorded:
    """The function of the drafter, whose results are kept."""

    def __init__(self, function: Forward, device: Device) -> None:
        self._function, self._device = function, device
        self.drafts: list[PackageDraft] = []

    def __call__(self, *arguments: tvm_ffi.Object) -> tvm_ffi.Array[tvm_ffi.Tensor]:
        result = self._function(*arguments)
        token, state, logits, *candidates = (self._device.read(one) for one in result)
        chosen = candidates[0].reshape(-1) if candidates else None
        draft = PackageDraft(int(token[0]), state.reshape(-1), logits.reshape(-1), chosen)
        self.drafts.append(draft)
        return result


def rounds_here(
    directory: Path, ids: Sequence[int], moves: Sequence[Move], library: str | None = None
) -> list[Round]:
    """Draft along a text in this process, on a library by name; errors as those of `Engine`."""
    named = library or main_library(directory)
    engine = Engine.open(directory, graphs=False, drafts=DRAFTS, device=named)
    rounds = engine.rounds
    assert rounds is not None, "a package with a drafter"
    drafter = rounds.drafter
    calls = drafter.calls
    assert isinstance(calls, PlainRounds), "an engine without graphs"
    recorded = calls.draft = _Recorded(calls.draft, engine.device)
    draft = drafter.guess

    def text_instead(token_id: int, position: int, count: int) -> None:
        draft(token_id, position, count)
        drafter.put(ids[position : position + 1 + count])

    drafter.guess = text_instead  # type: ignore[method-assign]  # of this one object
    found: list[Round] = []
    for move in moves:
        if move.begins:
            engine.clear()
            engine.prefill(ids[: move.position])
        recorded.drafts.clear()
        given, rows = rounds.advance(ids[move.position], move.drafts)
        assert len(given) == move.drafts, "there is room for them"
        logits = np.stack([rows.read(row) for row in range(len(given) + 1)])
        found.append(Round(move.position, tuple(recorded.drafts), logits, drafter.states))
        rounds.accept(move.kept - 1)
    return found


def rounds_on_dawn(
    directory: Path,
    ids: Sequence[int],
    moves: Sequence[Move],
    node_modules: Path,
    library: str | None = None,
) -> list[Round]:
    """Draft along a text on WebGPU, on a library by name; errors as those of `run_on_dawn`."""
    asked = {"ids": list(ids), "moves": [asdict(move) for move in moves]}
    found = on_dawn(directory, node_modules, lambda _: {"rounds": asked}, library)
    with found as (folder, written):
        return [
            _read(move, np.fromfile(folder / f"round-{index}.f32", np.float32), sizes)
            for index, (move, sizes) in enumerate(zip(moves, written["rounds"], strict=True))
        ]


def _read(move: Move, values: Float32Array, sizes: Sequence[int]) -> Round:
    """A round whose arrays of these sizes lie one after the other, ids as floats."""
    logits, states, *rest = np.split(values, np.cumsum(sizes)[:-1])
    each = len(rest) // max(move.drafts, 1)
    drafts = []
    for index in range(move.drafts):
        token, state, own, *candidates = rest[each * index : each * (index + 1)]
        chosen = candidates[0].astype(np.int32) if candidates else None
        drafts.append(PackageDraft(int(token[0]), state, own, chosen))
    rows = move.drafts + 1
    return Round(move.position, tuple(drafts), logits.reshape(rows, -1), states.reshape(rows, -1))


def rounds_for(device: str, node_modules: Path | None, library: str | None = None) -> Rounds:
    """Runner of rounds on packages for a device; errors as those of `runner_for`."""
    if not is_of_pages(device):
        return partial(rounds_here, library=library)
    folder = find_node_modules(node_modules)
    return partial(rounds_on_dawn, node_modules=folder, library=library)

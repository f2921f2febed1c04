"""Contexts in which each picture has as many rows, as the stock client gives them.

Against transformers, which is given the pictures' own rows alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.operators.padded_rows import DIGIT, PADDING
from tests.hf_media import Context
from tests.marks import slow_unless
from tests.parity.media import (
    CONTEXT_LENGTH,
    CPU,
    KINDS,
    Letters,
    MediaCase,
    make_case,
    prefill_rows,
)

pytestmark = pytest.mark.parity

PICTURE_ROWS = 24  # of every picture, for the client
LONG_CONTEXT = 2048  # tokens for the client
Step = tuple[Letters, int]  # what is added, and rows of a call


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., MediaCase]:
    spec = replace(CPU, pads_pictures=True)

    @cache
    def make(kind: str, recipe: str = "f32", context_length: int = CONTEXT_LENGTH) -> MediaCase:
        folder = tmp_path_factory.mktemp(f"padded-{kind}")
        return make_case(kind, folder, recipe=recipe, spec=spec, context_length=context_length)

    return make


def runs(modality: np.ndarray) -> list[tuple[int, int]]:
    """Begin and end of each run of one modality."""
    cuts = np.flatnonzero(np.diff(modality)) + 1
    return list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(modality)], strict=True))


def padded(given: Context) -> tuple[Context, list[int]]:
    """The client's rows, and how many of them there are after each run of the context."""
    parts, ends = [], []
    for begin, end in runs(given.modality):
        parts.append(given[begin:end])
        if given.modality[begin] == abi.MODALITY_MEDIA:
            missing = PICTURE_ROWS - (end - begin)
            rows = np.full((missing, given.rows.shape[1]), PADDING, np.float32)
            modality = np.full(missing, abi.MODALITY_MEDIA)
            parts.append(Context(np.zeros(missing, given.ids.dtype), modality, rows))
        ends.append(sum(len(part) for part in parts))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole, ends


CONTEXTS: dict[str, Letters] = {
    "within text": (("t", 9), ("p", 6), ("t", 8)),
    "first": (("p", 17), ("t", 5)),
    "one row": (("t", 3), ("p", 1), ("t", 4)),
    "several": (*(("t", 6), ("p", 5), ("t", 2), ("p", 21), ("t", 4)), *(("p", 3), ("t", 7))),
    "full": (("t", 4), ("p", PICTURE_ROWS), ("t", 5)),
    "after the rings have wrapped": (("t", 33), ("t", 30), ("p", 8), ("t", 12)),
    "text alone": (("t", 20),),
}
NEW_TOKENS = 6


def add(compiled: MediaCase, given: Context, end: int) -> dict[int, np.ndarray]:
    """Add a context a run at a time, and text with what stands before it; logits by position."""
    client, ends = padded(given)
    found, at = {}, 0
    own = [last for _, last in runs(given.modality)]
    for true_end, client_end in zip(own, ends, strict=True):
        if given.modality[true_end - 1] != abi.MODALITY_TEXT and true_end != own[-1]:
            continue  # with the text after it, in one call
        while at < client_end:
            stop = min(client_end, at + 40)
            logits = prefill_rows(compiled.engine, client[at:stop])
            at = stop
        found[true_end - 1] = logits
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    slow_unless(
        lambda kind, _: kind == "unified",
        [
            (kind, name)
            for kind in KINDS
            for name in CONTEXTS
            if kind in ("unified", "e2b") or name in ("several", "after the rings have wrapped")
        ],
    ),
)
def test_padding_leaves_no_trace(case: Callable[..., MediaCase], kind: str, name: str) -> None:
    compiled = case(kind)
    given = compiled.context((*CONTEXTS[name], ("t", NEW_TOKENS)))
    count = len(given) - NEW_TOKENS
    compiled.engine.clear()
    found = add(compiled, given[:count], count)
    found |= compiled.decode(given, count, len(given))
    compiled.check(given, found)


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "unified", KINDS))
def test_turns_and_tokens_that_are_taken_back(case: Callable[..., MediaCase], kind: str) -> None:
    """The client counts padding, also where it takes tokens back."""
    compiled = case(kind)
    kept = (("t", 7), ("p", 12), ("t", 4))
    given = compiled.context((*kept, ("p", 9), ("t", 5 + NEW_TOKENS)))
    dropped = compiled.context((("p", 11), ("t", 2)), seed=7)
    count = 23
    compiled.engine.clear()
    add(compiled, given[:count], count)
    length = compiled.engine.length
    assert length == count + PICTURE_ROWS - 12
    add(compiled, dropped, len(dropped))
    assert compiled.engine.pop(PICTURE_ROWS + 2)
    assert compiled.engine.length == length
    rest = given[count : len(given) - NEW_TOKENS]
    found = {count + at: logits for at, logits in add(compiled, rest, len(rest)).items()}
    found |= compiled.decode(given, len(given) - NEW_TOKENS, len(given))
    compiled.check(given, found)


def add_in_chunks(compiled: MediaCase, given: Context) -> dict[int, np.ndarray]:
    """Add a context in chunks as long as they may be; logits by position where none is padding."""
    client, _ = padded(given)
    is_text = client.modality == abi.MODALITY_TEXT
    is_kept = is_text | (client.rows[:, 0] != np.float32(PADDING))
    own = np.cumsum(is_kept) - 1
    found = compiled.prefill(client, 0, len(client))
    return {int(own[at]): logits for at, logits in found.items() if is_kept[at]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["e2b", "unified"])
def test_a_long_conversation(case: Callable[..., MediaCase], kind: str) -> None:
    """64 pictures in two turns, whose padding is more than one digit of its number holds."""
    compiled = case(kind, context_length=LONG_CONTEXT)
    pictures: list[Letters] = [(("t", 5), ("p", 1 + 5 * at % 13)) for at in range(64)]
    first, second = (
        tuple(run for one in some for run in one) for some in (pictures[:48], pictures[48:])
    )
    given = compiled.context((*first, ("t", 6 + NEW_TOKENS), *second, ("t", 6 + NEW_TOKENS)))
    turn = sum(length for _, length in first) + 6
    compiled.engine.clear()
    found = add_in_chunks(compiled, given[:turn])
    missing = compiled.engine.length - turn
    assert 0 < missing < DIGIT
    found |= compiled.decode(given, turn, turn + NEW_TOKENS)
    end = len(given) - NEW_TOKENS
    later = add_in_chunks(compiled, given[turn + NEW_TOKENS : end])
    found |= {turn + NEW_TOKENS + at: logits for at, logits in later.items()}
    assert compiled.engine.length - end > DIGIT
    found |= compiled.decode(given, end, len(given))
    assert len(found) > 30
    compiled.check(given, found)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["f16", "q4f16"])
def test_float16(case: Callable[..., MediaCase], recipe: str) -> None:
    compiled = case("unified", recipe)
    given = compiled.context((*CONTEXTS["several"], ("t", NEW_TOKENS)))
    count = len(given) - NEW_TOKENS
    compiled.engine.clear()
    found = add(compiled, given[:count], count)
    found |= compiled.decode(given, count, len(given))
    compiled.check(given, found)

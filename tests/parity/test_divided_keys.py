"""Full layers whose keys and values are in parts, against transformers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.placed_sequence import TOKEN, fill_with_random_keys, place_at
from tests import packages
from tests.marks import slow_unless
from tests.parity.conftest import Case, CaseFactory

pytestmark = pytest.mark.parity

ROW = 4 * 64  # bytes of a key of one head in float32
# Bytes of one tensor's keys: of 96 positions in two parts of 48, in five of 20 that are 4 more than
# the context, in fourteen of 7, which are less than a chunk and than most windows.
DIVIDED = {
    "e2b in 2": ("e2b", 48 * ROW),
    "e2b in 14": ("e2b", 7 * ROW),
    "e4b in 5": ("e4b", 2 * 20 * ROW),
    "dense in 3": ("dense", 2 * 33 * ROW),
    "moe in 5": ("moe", 20 * ROW),
}


QUICK = ("e2b in 14", "dense in 3")


@pytest.fixture(params=slow_unless(lambda name: name in QUICK, DIVIDED))
def divided(request: pytest.FixtureRequest, case: CaseFactory) -> Case:
    kind, nbytes = DIVIDED[request.param]
    return case(kind, key_bytes=nbytes)


@pytest.mark.slow
def test_a_conversation_through_the_whole_context(divided: Case) -> None:
    ids = divided.prompt(packages.CONTEXT_LENGTH)
    divided.engine.clear()
    found = divided.prefill(ids, 0, 17, 5)
    found |= divided.decode(ids, 17, 24)
    found |= divided.prefill(ids, 24, 77)
    found |= divided.decode(ids, 77, len(ids))
    divided.check(ids, found)


@pytest.mark.slow
def test_tokens_taken_back_and_others_in_their_place(divided: Case) -> None:
    ids = divided.prompt(50)
    divided.engine.clear()
    divided.engine.prefill([*ids[:46].tolist(), *[7] * 5])
    assert divided.engine.pop(5)
    divided.check(ids, divided.prefill(ids, 46, 48, 1) | divided.decode(ids, 48, 50))


@pytest.mark.slow
def test_a_benchmark_stands_where_a_prompt_would(case: CaseFactory) -> None:
    compiled = case("e2b", key_bytes=7 * ROW)
    ids, engine = compiled.prompt(70).tolist(), compiled.engine
    engine.clear()
    engine.prefill(ids)
    expected = engine.decode(TOKEN)
    np.testing.assert_array_equal(place_at(engine, 71), expected)  # keys are those of the prompt
    assert engine.length == 71
    fill_with_random_keys(engine)
    found = place_at(engine, 71)
    assert np.isfinite(found).all()
    assert not np.array_equal(found, expected)
    keys = [engine.device.read(tensor) for tensor in engine.kv.tensors()]
    assert len(keys) == 2 * (2 + 14)  # of K and V: two rings, a full layer in its parts
    # All were drawn but the row of the token, which is normed and as large.
    assert all(0.9 < key.std() < 1.1 for key in keys)

"""The place where a prompt's last rows wait, on an engine that a test scripts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gemma4_compile.media.inputs import Picture
from gemma4_compile.runtime.engine.generation import Paused
from gemma4_compile.runtime.engine.media_prompt import Prompt, Run
from gemma4_compile.runtime.engine.rows_due import MOST_ROWS_DUE, RowsDue, may_ride
from gemma4_compile.runtime.engine.token_due import TokenDue
from tests.scripted_engine import RandomEngine, greedy, scripted_generator

PROMPT = [*range(300, 323)]
CHUNK = 16


class Read:
    """A reply whose prompt is read with places to wait, and the events so far."""

    def __init__(self, prompt: Sequence[int] = PROMPT) -> None:
        self.engine = RandomEngine(prefill_chunk=CHUNK)
        self.generator = scripted_generator(self.engine)
        self.generation = self.generator.start(prompt, greedy, max_tokens=3, plain=True)
        self.events = self.generation.pausing()

    def next(self, kind: type) -> Paused:
        return next(event for event in self.events if isinstance(event, kind))

    def rows(self) -> RowsDue:
        found = self.next(RowsDue)
        assert isinstance(found, RowsDue)
        return found


def expected() -> list[int]:
    read = Read()
    list(read.events)
    return read.generation.token_ids


@pytest.mark.parametrize("parts", [[7], [3, 4], [3], []])
def test_rows_that_rode_are_not_read_again(parts: list[int]) -> None:
    """All of them, in one step or in two; those that are left are a chunk."""
    read = Read()
    rows = read.rows()
    assert (len(rows), read.engine.held) == (len(PROMPT) - CHUNK, PROMPT[:CHUNK])
    done = CHUNK
    for count in parts:
        riding = rows.begin(count)
        assert read.generator.is_interrupted, "nothing is known until the step has ended"
        assert riding.ids == PROMPT[done : done + count]
        assert riding.ends == (done + count == len(PROMPT))
        assert riding.engine is read.engine
        read.engine.prefill(riding.ids)
        rows.end()
        done += count
        assert list(read.generator.held_keys) == PROMPT[:done]
        assert (len(rows), rows.is_over) == (len(PROMPT) - done, done == len(PROMPT))
    read.next(TokenDue)
    assert read.engine.held == PROMPT
    list(read.events)
    assert read.generation.token_ids == expected()


def test_an_error_of_the_step_is_the_replys() -> None:
    read = Read()
    rows = read.rows()
    rows.begin(3)
    rows.fail(RuntimeError("the device has an error"))
    assert rows.is_over
    with pytest.raises(RuntimeError, match="device has an error"):
        list(read.events)
    assert read.generator.is_interrupted


def test_few_rows_of_text_wait_and_no_others() -> None:
    few = Prompt([300] * MOST_ROWS_DUE)
    picture = Picture(np.zeros((4, 12), np.uint8), np.zeros((4, 2), np.int32), b"1")
    assert may_ride(few)
    assert not may_ride(Prompt([300] * (MOST_ROWS_DUE + 1)))
    assert not may_ride(Prompt([300] * 4, (Run(1, 1, picture),)))
    whole = Read(PROMPT[:CHUNK])
    assert len(whole.rows()) == CHUNK, "a short prompt of its own, too"
    generator = scripted_generator(RandomEngine(prefill_chunk=CHUNK))
    plain = generator.start(PROMPT, greedy, max_tokens=3, plain=True)
    assert not [one for one in plain if isinstance(one, RowsDue)], "without pauses"

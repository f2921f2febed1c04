"""Rows of kept prefixes on the fake CUDA: which launches come after which copies."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.device.cuda_runtime import CudaError
from gemma4_compile.runtime.device.host_memory import memory_for_copies
from gemma4_compile.runtime.engine.joint import Riders
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.row_stream import Rows
from gemma4_compile.runtime.prefixes.kept import kept_prefixes
from gemma4_compile.runtime.prefixes.saved_rows import SavedRows, restore, save
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests.cuda.launches import CUDA, PROMPT, launches_of

HELD = 40  # tokens, in chunks: more than rings have rows
FOLLOWING = [9, 8, 7, 6]


def begin(package: Path) -> tuple[Engine, SavedRows]:
    """An engine of two sequences, and a prefix of random rows."""
    engine = Engine.open(package, sequences=2)
    engine.prefill(list(range(3, 3 + HELD)))
    entries, _ = engine.sequence.row_entries()
    saved = save(engine.sequence, entries, engine.device, None, None)
    draws = np.random.default_rng(1)
    for part in saved.parts:
        for rows in part.rows:
            rows.array[...] = draws.standard_normal(rows.array.shape)
    return engine, saved


def bring(engine: Engine, saved: SavedRows, sequence: Sequence | None = None) -> None:
    restore(sequence or engine.sequence, saved, HELD, engine.device, waits=False)


def check(saved: SavedRows, sequence: Sequence) -> None:
    """The rows are there, as they were sent."""
    for part in saved.parts:
        for rows in part.rows:
            found = np.zeros_like(rows.array)
            sequence.read_rows(rows.entry, rows.first, found)
            np.testing.assert_array_equal(found, rows.array)


def nothing_left(package: Path) -> None:
    """The stream and its events go with the engine."""
    engine, saved = begin(package)
    bring(engine, saved)
    engine.prefill(FOLLOWING)
    assert CUDA.alive > 0
    del engine
    gc.collect()
    assert CUDA.alive == 0


def rows_by_layer(package: Path) -> None:
    """Kernels of a chunk wait for the rows of their own layer, and not for those of later ones."""
    engine, saved = begin(package)
    bring(engine, saved)
    assert CUDA.copies_due == 0, "they are asked for behind the chunk's own uploads"
    bring(engine, saved)  # as after a prompt that broke off: what is due no more is left out
    launches = launches_of(lambda: engine.prefill(FOLLOWING)).direct
    assert CUDA.launches_before == 1, "copies come after all that was launched: the embedding"
    tensors = [tensor.data_ptr() for tensor in engine.kv.tensors()]
    keys = tensors[: len(tensors) // 2]
    kept = {rows.entry for part in saved.parts for rows in part.rows}
    first = {
        entry: next(one.due for one in launches if keys[entry] in one.params)
        for entry in sorted(kept)
    }
    due = [first[entry] for entry in sorted(kept)]
    assert due == sorted(set(due), reverse=True), "each waits for more than the one before"
    assert due[-1] == 0
    assert launches[1].due > due[0] > 0
    assert all(
        one.due <= first[entry] for one in launches for entry in kept if keys[entry] in one.params
    )
    check(saved, engine.sequence)
    again = launches_of(lambda: engine.prefill(FOLLOWING)).direct
    assert [one.due for one in again] == [0] * len(launches)


def rows_at_once(package: Path) -> None:
    """Switched off: all rows are there before the first launch of a chunk."""
    engine, saved = begin(package)
    bring(engine, saved)
    launches = launches_of(lambda: engine.prefill(FOLLOWING)).direct
    assert launches
    assert [one.due for one in launches] == [0] * len(launches)
    check(saved, engine.sequence)


def rows_for_others(package: Path) -> None:
    """Whatever else is done with sequences comes after all rows; what goes is not waited for."""
    engine, saved = begin(package)
    first, second = engine.sequence, engine.sequences.add()
    engine.prefill(PROMPT, second)

    def step() -> None:
        first.chosen, first.sampler = 5, Sampler(SamplingOptions(temperature=1.0), 1)
        second.chosen, second.sampler = 6, Sampler(SamplingOptions(temperature=1.0), 2)
        engine.step([first, second])

    def ride() -> None:
        second.chosen = 6
        engine.step([second], Riders(first, [7, 8]))

    actions: list[Callable[[], object]] = [
        lambda: engine.decode(5),
        lambda: engine.decode(5),
        lambda: engine.decode(5, second),
        step,
        ride,
    ]
    for action in actions:
        bring(engine, saved)
        step_launches = launches_of(action)
        launches = [*step_launches.direct, *step_launches.replayed]
        assert launches
        assert [one.due for one in launches] == [0] * len(launches)
        check(saved, first)
    engine.sequences.remove(second)
    bring(engine, saved)
    fork = engine.sequences.fork(first, HELD)
    check(saved, fork)
    engine.sequences.remove(fork)
    third = engine.sequences.add()
    bring(engine, saved, third)
    CUDA.clear()
    third.clear()
    launches = launches_of(lambda: engine.prefill(PROMPT, third)).direct
    assert CUDA.uploads <= 4, "none of what its slot no longer holds"
    bring(engine, saved)
    check(saved, first)  # as who keeps a reply would
    bring(engine, saved)
    engine.decode(5)
    assert CUDA.copies_due == 0


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def rows_after_errors(package: Path) -> None:
    """An error on the way leaves a sequence that can be cleared and be given the rows again."""
    engine, saved = begin(package)
    other = engine.sequences.add()
    bring(engine, saved, other)
    for function in ("cudaStreamWaitEvent", "cudaEventRecord", ""):
        bring(engine, saved)
        CUDA.fail(function)
        with pytest.MonkeyPatch.context() as patch:
            if not function:
                patch.setattr(engine.runner, "prefill", interrupt)
            with pytest.raises((CudaError, KeyboardInterrupt)):
                engine.prefill(FOLLOWING)
        CUDA.fail("")
        engine.sequence.clear()
        bring(engine, saved)
        engine.prefill(FOLLOWING)
        assert CUDA.copies_due == 0
        check(saved, engine.sequence)
    check(saved, other)
    engine.sequence.clear()
    entries, _ = engine.sequence.row_entries()
    too_many = np.zeros((2, entries[0].rows + 1, entries[0].heads, entries[0].head_dim), "float16")
    with pytest.raises(ValueError, match="rows of entry 0: it has"):
        engine.sequence.send_rows([Rows(0, 0, too_many)])
    engine.prefill(PROMPT)
    with pytest.raises(ValueError, match="into a sequence without tokens, and this one has 3"):
        engine.sequence.send_rows([Rows(0, 0, too_many[:, :1])])


def rows_after_an_interrupt(package: Path) -> None:
    """A copy that an interruption follows does not come over the rows of later forwards."""
    engine, saved = begin(package)
    stream, asked = engine.kv.rows.stream, count()
    assert stream is not None
    copy = stream._copy

    def once(*arguments: object) -> int:
        if next(asked):
            raise KeyboardInterrupt
        return copy(*arguments)

    bring(engine, saved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_copy", once)
        with pytest.raises(KeyboardInterrupt):
            engine.prefill(FOLLOWING)
    engine.sequence.clear()
    launches = launches_of(lambda: engine.prefill(FOLLOWING)).direct
    assert launches
    assert [one.due for one in launches] == [0] * len(launches)


def rows_are_held(package: Path) -> None:
    """What a copy has yet to read is no one else's, although the budget has driven it out."""
    engine, saved = begin(package)
    prefixes = kept_prefixes(engine, 1 << 24)
    assert prefixes is not None
    keys, own = list(range(3, 3 + HELD)), prefixes.of(engine)
    prefixes.add(keys, saved)
    expected = [(rows.entry, rows.first, rows.array.copy()) for x in saved.parts for rows in x.rows]
    sizes = [part.nbytes for part in saved.parts]
    state = weakref.ref(saved)
    del saved
    assert own.restore(Prompt([*keys, *FOLLOWING]), 0, 0) is not None
    prefixes.memory.clear()
    gc.collect()
    assert state() is not None
    others = [memory_for_copies(engine.device, size) for size in sizes]
    for one in others:
        one[...] = 0xA5
    engine.prefill(FOLLOWING)
    for entry, first, array in expected:
        found = np.zeros_like(array)
        engine.sequence.read_rows(entry, first, found)
        np.testing.assert_array_equal(found, array)
    del others
    own.keep([*keys, *FOLLOWING], 0, None)  # a token of the reply is there
    gc.collect()
    assert state() is None

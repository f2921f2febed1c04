"""A forward of several sequences: each has the logits that it has alone, whoever is beside it.

On a CPU in float32 that is exact: every row of every kernel is summed in the order of one row.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.runtime import ContextFullError, Engine, Sampler, SamplingOptions
from gemma4_compile.runtime.device import device
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.engine.turns import Turns
from gemma4_compile.runtime.library.joint_steps import JointDraws
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Float32Array
from tests.several_sequences import emptied, ids_of

CONTEXT, RINGS = 256, 64
MOST = 8


@pytest.fixture(scope="module")
def shared(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package, sequences=10)


@pytest.fixture
def engine(shared: Engine) -> Engine:
    return emptied(shared)


@pytest.fixture(scope="module")
def alone(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package)


def begun(engine: Engine, prompts: Listed[Listed[int]]) -> list[Sequence]:
    """Sequences with these prompts, the engine's own first."""
    sequences = [engine.sequence, *(engine.sequences.add() for _ in prompts[1:])]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        engine.prefill(prompt, sequence)
    return sequences


def logits_of(engine: Engine, sequence: Sequence) -> Float32Array:
    assert sequence.logits is not None
    return engine.device.read(sequence.logits).reshape(-1)


def by_hand(alone: Engine, prompt: Listed[int], tokens: Listed[int]) -> Float32Array:
    """Logits after a prompt and tokens, one sequence at a time."""
    alone.clear()
    logits = alone.prefill(prompt)
    for token in tokens:
        logits = alone.decode(token)
    return logits


def test_each_row_has_the_logits_of_its_sequence_alone(engine: Engine, alone: Engine) -> None:
    """From the first token on, around the window, with rings that wrapped, at the context's end."""
    lengths = (1, 2, RINGS - 1, RINGS, 3 * RINGS + 5, CONTEXT - 3)
    prompts = [ids_of(length, length) for length in lengths]
    sequences = begun(engine, prompts)
    added: list[list[int]] = [[] for _ in prompts]
    for step in range(3):
        tokens = ids_of(len(prompts), 100 + step)
        engine.joint.add(sequences, tokens)
        for index, token in enumerate(tokens):
            added[index].append(token)
            expected = by_hand(alone, prompts[index], added[index])
            np.testing.assert_array_equal(logits_of(engine, sequences[index]), expected)
    assert sequences[-1].length == CONTEXT
    with pytest.raises(ValueError, match="holds 256 of 256 tokens"):
        engine.joint.add(sequences, ids_of(len(prompts), 200))
    assert [one.length for one in sequences[:2]] == [4, 5], "nothing was added to any"


def test_a_row_does_not_depend_on_its_neighbours(engine: Engine) -> None:
    """In any order and number, and beside any others."""
    prompts = [ids_of(20, 1), ids_of(90, 2), ids_of(5, 3)]
    sequences = begun(engine, prompts)
    expected: dict[int, Float32Array] = {}
    for order in [*permutations(range(3)), *permutations(range(3), 2)]:
        engine.joint.add([sequences[index] for index in order], [300 + index for index in order])
        for index in order:
            found = logits_of(engine, sequences[index])
            np.testing.assert_array_equal(expected.setdefault(index, found), found)
            assert sequences[index].pop(1)
    for seed in range(3):  # others in the place of the second and of the third
        for sequence in sequences[1:]:
            sequence.clear()
            engine.prefill(ids_of(30 + 50 * seed, 10 + seed), sequence)
        engine.joint.add(sequences, [300, *ids_of(2, seed)])
        np.testing.assert_array_equal(logits_of(engine, sequences[0]), expected[0])
        sequences[0].pop(1)


def test_more_sequences_than_a_forward_takes_are_several_forwards(
    engine: Engine, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [ids_of(4 + index, index) for index in range(10)]
    sequences = begun(engine, prompts)
    steps = engine.joint.steps
    assert steps is not None
    assert engine.joint.most == MOST
    forward, rows = steps.forward, list[int]()

    def counted(tokens: Listed[int]) -> tvm_ffi.Tensor:
        rows.append(len(tokens))
        return forward(tokens)

    monkeypatch.setattr(steps, "forward", counted)
    for sequence in sequences:
        sequence.sampler = Sampler(SamplingOptions(temperature=0.0))
    first = engine.step(sequences)
    assert rows == [], "prompts have logits"
    found = engine.step(sequences)
    assert rows == [5, 5]
    for prompt, token, following in zip(prompts, first, found, strict=True):
        assert int(by_hand(alone, prompt, [token]).argmax()) == following
    engine.step(sequences[:MOST])
    engine.step(sequences[3:4])
    assert rows == [5, 5, MOST], "one alone has the step of one"


def test_sequences_come_and_go_between_steps(engine: Engine, alone: Engine) -> None:
    """One is removed and its slot taken by another; a fork goes on beside its parent."""
    prompts = [ids_of(150, 1), ids_of(40, 2), ids_of(8, 3)]
    first, second, third = begun(engine, prompts)
    engine.joint.add([first, second, third], [301, 302, 303])
    slot = second.slot
    engine.sequences.remove(second)
    child = engine.sequences.fork(first, 149)
    assert child.slot == slot
    engine.joint.add([third, child, first], [401, 402, 403])
    pairs = [(first, prompts[0], [301, 403]), (third, prompts[2], [303, 401])]
    for sequence, prompt, tokens in [*pairs, (child, prompts[0][:149], [402])]:
        expected = by_hand(alone, prompt, tokens)
        np.testing.assert_array_equal(logits_of(engine, sequence), expected)
    # Those of one that is not in a step stay what they are, also for a fork of it.
    engine.joint.add([first, child], [501, 502])
    kept = engine.sequences.fork(third)
    for sequence in (third, kept):
        expected = by_hand(alone, prompts[2], [303, 401])
        np.testing.assert_array_equal(logits_of(engine, sequence), expected)
    engine.decode(600, first)
    expected = by_hand(alone, prompts[0], [301, 403, 501, 600])
    np.testing.assert_array_equal(logits_of(engine, first), expected)


def test_a_context_shorter_than_a_group_makes_smaller_ones(tiny_package: Path) -> None:
    engine = Engine.open(tiny_package, sequences=4, context_length=3)
    sequences = begun(engine, [[2, 9], [2, 10], [2, 11], [2, 12]])
    engine.joint.add(sequences, [300, 301, 302, 303])
    assert [one.length for one in sequences] == [3] * 4
    alone = Engine.open(tiny_package, context_length=3)
    for index, sequence in enumerate(sequences):
        expected = by_hand(alone, [2, 9 + index], [300 + index])
        np.testing.assert_array_equal(logits_of(engine, sequence), expected)
    for sequence in sequences:
        sequence.sampler = Sampler(SamplingOptions(temperature=0.0))
    engine.step(sequences)
    with pytest.raises(ContextFullError):
        engine.step(sequences)


def test_a_library_without_the_function_takes_turns(
    tiny_package: Path, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of earlier versions, and of targets whose kernels take no addresses."""
    monkeypatch.setattr(NativeLibrary, "has", lambda self, name: name != abi.DECODE_ROWS)
    engine = Engine.open(tiny_package, sequences=2)
    assert (engine.joint.most, engine.joint.steps) == (1, None)
    prompts = [ids_of(20, 1), ids_of(30, 2)]
    sequences = begun(engine, prompts)
    engine.joint.add(sequences, [300, 301])
    for index, sequence in enumerate(sequences):
        expected = by_hand(alone, prompts[index], [300 + index])
        np.testing.assert_array_equal(logits_of(engine, sequence), expected)


def drawing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine as on a device that draws tokens."""
    kinds = {**NATIVE_KINDS, "cpu": replace(NATIVE_KINDS["cpu"], draws=True)}
    monkeypatch.setattr(device, "NATIVE_KINDS", kinds)
    return engine


def test_rows_with_the_same_options_are_drawn_at_once(
    engine: Engine, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token is the one that its sequence draws alone, from its own random numbers."""
    drawing(engine, monkeypatch)
    options = [(0.9, 0.8), (1.3, 0.95), (0.9, 0.8), (0.0, 1.0), (1.3, 0.95), (0.9, 0.8), (2.0, 1.0)]
    prompts = [ids_of(10 + 9 * index, index) for index in range(len(options))]
    sequences = begun(engine, prompts)
    samplers = [Sampler(SamplingOptions(t, top_p=p), seed) for seed, (t, p) in enumerate(options)]
    for sequence, sampler in zip(sequences, samplers, strict=True):
        sequence.sampler = sampler
    rows = list[int]()
    launch = JointDraws.launch

    def counted(
        self: JointDraws,
        logits: tvm_ffi.Tensor,
        first: int,
        own: DrawOptions,
        uniforms: Listed[float],
    ) -> tvm_ffi.Tensor:
        rows.append(len(uniforms))
        return launch(self, logits, first, own, uniforms)

    monkeypatch.setattr(JointDraws, "launch", counted)
    steps = [engine.step(sequences) for _ in range(5)]
    assert sorted(rows) == sorted(4 * [2, 3]), "the first tokens are drawn after prompts"
    for index, (temperature, top_p) in enumerate(options):
        by_itself = Sampler(SamplingOptions(temperature, top_p=top_p), index)
        alone.clear()
        alone.prefill(prompts[index])
        for step in steps:
            if temperature:
                token = alone.sampling.draw_last((temperature, top_p), by_itself.random())
            else:
                token = by_itself(logits_of(alone, alone.sequence))
            assert step[index] == token
            alone.decode(token)


def test_logits_that_a_draw_did_not_keep_are_made_again(
    engine: Engine, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a fork at the end, and for a step whose tokens were not read; rings have wrapped."""
    drawing(engine, monkeypatch)
    prompts = [ids_of(9, 1), ids_of(RINGS + 20, 2)]
    sequences = begun(engine, prompts)
    for seed, sequence in enumerate(sequences):
        sequence.sampler = Sampler(SamplingOptions(0.9, top_p=0.9), seed)
    added = [[token] for token in engine.step(sequences)]
    after = engine.step(sequences)
    assert [one.logits for one in sequences] == [None, None]
    child = engine.sequences.fork(sequences[1])
    child.sampler = Sampler(SamplingOptions(temperature=0.0))
    expected = by_hand(alone, prompts[1], added[1])
    assert engine.step([child]) == [int(expected.argmax())]
    np.testing.assert_array_equal(logits_of(engine, child), expected)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Turns, "_read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step(sequences)
    lengths = [len(prompt) + 2 for prompt in prompts]
    assert [one.length for one in sequences] == lengths
    again = engine.step(sequences)
    assert [one.length for one in sequences] == lengths
    for seed, (prompt, own) in enumerate(zip(prompts, added, strict=True)):
        by_itself = Sampler(SamplingOptions(0.9, top_p=0.9), seed)
        numbers = [by_itself.random() for _ in range(4)]  # one was for tokens that nobody read
        by_hand(alone, prompt, [*own, after[seed]])
        assert again[seed] == alone.sampling.draw_last((0.9, 0.9), numbers[3])


def test_a_failed_step_is_drawn_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sampler of the host raises, the logits of all rows are still there."""
    drawing(engine, monkeypatch)
    sequences = begun(engine, [ids_of(9, 1), ids_of(20, 2), ids_of(31, 3)])
    for seed, sequence in enumerate(sequences[:2]):
        sequence.sampler = Sampler(SamplingOptions(0.9, top_p=0.9), seed)
    sequences[2].sampler = Sampler(SamplingOptions(temperature=0.0))
    engine.step(sequences)
    lengths = [one.length for one in sequences]

    def refuse(logits: Float32Array) -> int:
        raise RuntimeError(f"{len(logits)} logits are refused")

    sequences[2].sampler = refuse
    with pytest.raises(RuntimeError, match="are refused"):
        engine.step(sequences)
    assert [one.length for one in sequences] == [length + 1 for length in lengths]
    sequences[2].sampler = Sampler(SamplingOptions(temperature=0.0))
    logits = [logits_of(engine, one) for one in sequences]
    again = engine.step(sequences)
    assert [one.length for one in sequences] == [length + 1 for length in lengths]
    assert again[2] == int(logits[2].argmax())

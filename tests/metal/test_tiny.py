"""A package of the shipped model, on the emulated Metal device, in the runtime that users have.

Kernels are compiled with fast math, as on a Mac.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.runtime import Chat, Engine, Sampler, SamplingOptions
from gemma4_compile.runtime.check.kernel_check import check_kernels, kernels_of
from gemma4_compile.runtime.device import device
from gemma4_compile.runtime.device.staged_uploads import StagedUploads
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.library.row_stream import Rows
from gemma4_compile.runtime.package.package import Package
from tests import tolerances
from tests.marks import slow_unless
from tests.metal import emulator
from tests.tiny_answers import CONVERSATIONS

GREEDY = Sampler(SamplingOptions(temperature=0.0))
SEQUENCES = 23  # of three uploads each, more than there may be between waits
PROMPT = [2, *range(105, 140)]  # three chunks
# A token takes a tenth of a second here, so it is few questions, and of a conversation its begin.
ASKED = {"sum": 1, "brief": 1, "memory": 2}


@pytest.fixture(scope="module")
def package(metal_packages: None, tiny_package: Path) -> Path:
    return tiny_package


def test_it_is_a_package_for_metal(package: Path) -> None:
    provenance = read_artifact(package / abi.PROVENANCE_FILE)
    assert provenance["build"]["target"] == "metal"
    assert provenance["library"] == "model.dylib"


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "sum", ASKED))
def test_it_answers_as_the_cpu_build_does(name: str, package: Path) -> None:
    # tests/e2e/test_tiny_answers.py asks the CPU builds for the same words.
    (conversation,) = (asked for asked in CONVERSATIONS if asked.name == name)
    chat = Chat.open(package, system=conversation.system)
    for question, answer in conversation.turns[: ASKED[name]]:
        assert "".join(chat.stream(question, GREEDY, max_tokens=50)) == answer


def test_the_order_of_threads_changes_no_more_than_the_order_of_sums(package: Path) -> None:
    """Sums over a simdgroup are in an order that Metal does not promise."""

    def logits() -> list[np.ndarray]:
        engine = Engine.open(package)
        return [engine.prefill(PROMPT), engine.decode(5), engine.decode(6)]

    expected = logits()
    with emulator.threads_in_descending_order():
        found = logits()
    for before, after in zip(expected, found, strict=True):
        assert np.isfinite(before).all()
        assert np.abs(before - after).max() <= tolerances.LOGITS_F16


def test_a_step_of_several_sequences_is_one_forward_with_what_each_has_alone(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a slot, at a length and in an order of its own; slots that are not in the step stay.

    Kernels of few rows sum in another order than those of one.
    """
    engine, alone = Engine.open(package, sequences=3), Engine.open(package)
    assert (engine.joint.most, engine.joint.steps is None) == (8, False)
    prompts = [PROMPT, [2], [2, 110]]
    sequences = [engine.sequence, *(engine.sequences.add() for _ in prompts[1:])]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        engine.prefill(prompt, sequence)
    found: dict[int, list[np.ndarray]] = {place: [] for place in range(3)}
    added: dict[int, list[int]] = {place: [] for place in range(3)}
    monkeypatch.setattr(engine.runner, "forward_one", None)
    for step, order in enumerate(([2, 0, 1], [1, 0])):
        tokens = [300 + 10 * step + place for place in order]
        engine.joint.add([sequences[place] for place in order], tokens)
        for place, token in zip(order, tokens, strict=True):
            logits = sequences[place].logits
            assert logits is not None
            found[place].append(engine.device.read(logits).reshape(-1).copy())
            added[place].append(token)
    for place, prompt in enumerate(prompts):
        alone.clear()
        alone.prefill(prompt)
        for token, row in zip(added[place], found[place], strict=True):
            assert np.abs(alone.decode(token) - row).max() <= tolerances.LOGITS_F16


@pytest.mark.slow
def test_a_step_of_many_sequences_waits_before_staging_memory_is_filled_again(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three uploads each, where the device keeps 64 apart and refuses to launch after more.

    They take turns, as in libraries of earlier versions, and each has the logits that it has alone.
    """
    newer = (abi.DECODE_ROWS, abi.VERIFY_ROWS)
    monkeypatch.setattr(NativeLibrary, "has", lambda self, name: name not in newer)
    engine, alone = Engine.open(package, sequences=SEQUENCES), Engine.open(package)
    assert engine.joint.steps is None
    for one in (engine, alone):
        one.prefill([2, 110])
    forks = [engine.sequences.fork(engine.sequence) for _ in range(SEQUENCES - 1)]
    sequences, tokens = [engine.sequence, *forks], list(range(107, 107 + SEQUENCES))
    engine.joint.add(sequences, tokens)
    last = sequences[-1].logits
    assert last is not None
    np.testing.assert_array_equal(engine.device.read(last).reshape(-1), alone.decode(tokens[-1]))
    # So do the rows of prefixes that are put back, two uploads of each layer.
    sequence = sequences[0]
    entries, dtype = sequence.row_entries()
    rows, again = (np.empty((2, 3, entries[0].heads, entries[0].head_dim), dtype) for _ in range(2))
    sequence.read_rows(0, 0, rows)
    engine.device.wait()
    sequence.clear()
    for _ in range(40):
        sequence.send_rows([Rows(0, 0, rows)])
    sequence.resume(3, 3)
    engine.decode(110, sequence)
    sequence.read_rows(0, 0, again)
    engine.device.wait()
    np.testing.assert_array_equal(again, rows)


def test_the_device_refuses_what_staging_memory_does_not_keep_apart(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the test above would show nothing."""
    engine = Engine.open(package)
    engine.prefill([2, 110])
    feed = device.Feed(engine.device, 4, "int32")
    for number in range(100):
        engine.device.expect_uploads(2)  # as of a library's function, which here makes none
        feed.write([number, number + 1])
    engine.decode(107)
    monkeypatch.setattr(StagedUploads, "expect", lambda self, count: None)
    for number in range(65):
        feed.write([number, number + 1])
    with pytest.raises(RuntimeError, match="uploads since the last wait"):
        engine.decode(108)
    engine.device.wait()


@pytest.mark.slow
def test_the_self_test_of_its_kernels_finds_no_fault(package: Path) -> None:
    opened = Package.open(package)
    where = device.Device.open(opened.target)
    library = NativeLibrary(opened.library_path, where)
    kernels = kernels_of(library.metadata())
    one_of_a_kind = {json.loads(operator)["kind"]: name for name, operator in kernels.items()}
    chosen = {name: kernels[name] for name in one_of_a_kind.values()}
    chunk = opened.chat_config.prefill_chunk_size
    results = list(check_kernels(library, where, chosen, chunk))
    assert {result.kind for result in results} == set(one_of_a_kind)
    assert not [result for result in results if result.problem]
    # They are other kernels than the definitions: not every bit is the same.
    assert any(result.error_share > 0 for result in results)

"""What an ended tuning keeps of the libraries that it has timed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.runtime.check.trials import Trials
from gemma4_compile.runtime.check.tune_run import Sizes, Timing
from gemma4_compile.runtime.device.metal_launcher import SWITCH

LOGITS = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
TIMING = Timing("", 9, 1000.0, 50.0)
TRIALS = Trials("a choice", Sizes())


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gemma4_compile" / "tuning-trials"


def test_a_trial_is_of_its_choice_sizes_and_library(monkeypatch: pytest.MonkeyPatch) -> None:
    TRIALS.keep("metal", TIMING, LOGITS)
    found = TRIALS.find("metal")
    assert found is not None
    timing, logits = found
    assert timing == TIMING
    np.testing.assert_array_equal(logits, LOGITS)
    assert TRIALS.find("cpu") is None
    assert replace(TRIALS, tuning="another").find("metal") is None
    assert replace(TRIALS, sizes=Sizes(64)).find("metal") is None
    with monkeypatch.context() as other:
        other.setenv(SWITCH, "own")
        assert TRIALS.find("metal") is None
    TRIALS.forget("metal")
    TRIALS.forget("metal")
    assert TRIALS.find("metal") is None


@pytest.mark.parametrize("hours", [-1.0, 25.0])
def test_a_trial_is_of_the_last_day(hours: float, monkeypatch: pytest.MonkeyPatch) -> None:
    TRIALS.keep("metal", TIMING, LOGITS)
    now = time.time() + hours * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    assert TRIALS.find("metal") is None


@pytest.mark.parametrize("content", [b"", b"{}\n", b"7", b"[]\n1234", b'{"shape": 4}\n', b"\xff\n"])
def test_a_note_that_is_none_is_not_taken(content: bytes, notes: Path) -> None:
    TRIALS.keep("metal", TIMING, LOGITS)
    (note,) = notes.iterdir()
    note.write_bytes(content)
    assert TRIALS.find("metal") is None


def test_a_note_that_was_cut_is_not_taken(notes: Path) -> None:
    TRIALS.keep("metal", TIMING, LOGITS)
    (note,) = notes.iterdir()
    note.write_bytes(note.read_bytes()[:-4])
    assert TRIALS.find("metal") is None


def test_trials_that_nobody_goes_on_from_take_little_room(notes: Path) -> None:
    names = [f"library {index}" for index in range(20)]
    for name in names:
        TRIALS.keep(name, TIMING, LOGITS)
    assert len(list(notes.iterdir())) <= 8
    assert TRIALS.find(names[-1]) is not None

"""Tuning: the fastest library that computes right, as made-up results have it, and real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime import cli
from gemma4_compile.runtime.check import tune
from gemma4_compile.runtime.check.tune import compare, divergence, tuning_table
from gemma4_compile.runtime.check.tune_run import Sizes, Timing
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.package.choice import Candidate, choose_library, native_libraries
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.package.tuned import kept_choice
from gemma4_compile.runtime.terminal.console import Console
from gemma4_compile.targets.libraries import LIBRARIES
from tests.commands import CHAT
from tests.libraries import ELF_X86, MACH_O_ARM, record, with_libraries

LOGITS = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
OTHER = np.random.default_rng(1).normal(scale=4, size=(4, 16)).astype(np.float32)
FAST, SLOW = Timing("", 9, 1000.0, 50.0), Timing("", 9, 100.0, 20.0)


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gemma4_compile" / "tuned-packages"


def candidate(name: str, device: str, activations: str = "float", lacks: str = "") -> Candidate:
    library = record(name, device, activations=activations)
    return Candidate(library, None if lacks else Device(device), lacks)


CUDA, CPU = candidate("cuda", "cuda", "int8"), candidate("cpu", "cpu")
INT8 = candidate("cpu-int8", "cpu", "int8")


@pytest.mark.parametrize(
    ("results", "chosen", "problems"),
    [
        ({"cuda": (FAST, LOGITS), "cpu": (SLOW, LOGITS)}, "cuda", {}),
        ({"cuda": (SLOW, LOGITS), "cpu": (FAST, LOGITS)}, "cpu", {}),
        # A turn has a prompt, too: twice as fast a reply does not make up for ten times the wait.
        (
            {
                "cuda": (Timing("", 9, 1000.0, 10.0), LOGITS),
                "cpu": (Timing("", 9, 5.0, 20.0), LOGITS),
            },
            "cuda",
            {},
        ),
        ({"cuda": (FAST, OTHER), "cpu": (SLOW, LOGITS)}, "cpu", {"cuda": "otherwise than `cpu`"}),
        (
            {"cuda": (Timing("kernel `k`: off", 3), None), "cpu": (SLOW, LOGITS)},
            "cpu",
            {"cuda": "kernel `k`: off"},
        ),
        (
            {"cuda": (FAST, LOGITS * np.float32("nan")), "cpu": (SLOW, LOGITS)},
            "cpu",
            {"cuda": "no numbers"},
        ),
        ({"cuda": (FAST, None), "cpu": (Timing("x"), None)}, None, {"cuda": "", "cpu": "x"}),
    ],
)
def test_the_fastest_right_one_is_chosen(
    results: dict[str, tuple[Timing, np.ndarray | None]],
    chosen: str | None,
    problems: dict[str, str],
) -> None:
    found = compare([CUDA, CPU], {"cuda": "a GPU", "cpu": "a CPU"}, results.__getitem__)
    assert [one.name for one in found if one.chosen] == ([] if chosen is None else [chosen])
    told = {one.name: one.timing.problem for one in found if one.timing and one.timing.problem}
    assert told.keys() == problems.keys()
    assert all(text in told[name] for name, text in problems.items())


def test_rounded_vectors_are_held_to_those_that_are_not() -> None:
    tried, seen = [INT8, CPU], []

    def attempt(name: str) -> tuple[Timing, np.ndarray]:
        seen.append(name)
        return (FAST, OTHER) if name == "cpu-int8" else (SLOW, LOGITS)

    found = compare(tried, {"cpu": "a CPU", "cpu-int8": "a CPU"}, attempt)
    assert seen == ["cpu-int8", "cpu"]
    assert [one.name for one in found if one.chosen] == ["cpu"]


def test_what_does_not_run_here_is_in_the_table_and_not_tried() -> None:
    metal = candidate("metal", "metal", lacks="it is for macOS")
    found = compare([metal, CPU], {"cpu": "a CPU"}, {"cpu": (SLOW, LOGITS)}.__getitem__)
    head, first, second = tuning_table(found).splitlines()
    assert head.split("   ")[0] == "library"
    assert first.endswith("it is for macOS")
    assert second.split() == ["cpu", "a", "CPU", "100.0", "20.0", "chosen"]


def test_divergence_is_of_probabilities() -> None:
    assert divergence(LOGITS, LOGITS + np.float32(3)) == pytest.approx(0, abs=1e-6)
    first, second = np.log(np.array([[0.5, 0.5]])), np.log(np.array([[0.25, 0.75]]))
    expected = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert divergence(first.astype("f4"), second.astype("f4")) == pytest.approx(expected, rel=1e-5)
    assert divergence(LOGITS, LOGITS[:2]) == float("inf")


@pytest.mark.slow
def test_libraries_are_timed_and_the_choice_is_kept(
    tiny_package: Path,
    tmp_path: Path,
    memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One of two is no library that loads: it ends in its own process, and the other is kept."""
    broken, metal = record("cpu", "cpu"), record("metal", "metal")
    libraries = [(broken, ELF_X86), (record("cpu-int8", "cpu"), None), (metal, MACH_O_ARM)]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    assert choose_library(folder, read_provenance(folder)).library.name == "cpu"
    monkeypatch.setattr(tune, "KERNELS_S", 0.1)
    assert cli.main([str(folder), "--tune"]) == 0
    told = capsys.readouterr()
    rows = {line.split()[0]: line for line in told.out.splitlines()}
    assert rows.keys() == {"library", "cpu", "cpu-int8", "metal"}
    assert "cannot load the model library" in rows["cpu"]
    assert rows["cpu-int8"].endswith("chosen")
    assert "timing `cpu-int8`" in told.err
    assert len(list(memory.iterdir())) == 1
    assert choose_library(folder, read_provenance(folder)).library.name == "cpu-int8"


TILES = [name for name, form in LIBRARIES.items() if form.target == "metal"]


def test_tiles_of_a_mac_are_timed_and_a_search_that_was_ended_goes_on(
    tiny_package: Path,
    tmp_path: Path,
    memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With played times: the last tiles are the fastest and wrong."""
    tiles = [(record(name, "metal"), MACH_O_ARM) for name in TILES]
    libraries = [(record("cpu", "cpu"), None), *tiles]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    provenance = read_provenance(folder)
    tried = [Candidate(one, Device(one.device)) for one in native_libraries(provenance)[:-1]]
    devices = dict.fromkeys(TILES, "Apple M9")
    monkeypatch.setattr(tune, "candidates", lambda *_: tried)
    monkeypatch.setattr(tune, "usable_devices", lambda _: devices)
    timed: list[str] = []
    ends_at = TILES[2]

    def play(_folder: Path, name: str, *_rest: object) -> tuple[Timing, np.ndarray]:
        timed.append(name)
        if name == ends_at:
            raise KeyboardInterrupt
        wrong = name == TILES[-1]
        return Timing("", 9, 100.0 * (1 + TILES.index(name)), 20.0), OTHER if wrong else LOGITS

    def search() -> list[str]:
        timed.clear()
        results = tune.tune(folder, Check.OFF, Console())
        assert [one.name for one in results] == TILES
        return [one.name for one in results if one.chosen]

    monkeypatch.setattr(tune, "_attempt", play)
    with pytest.raises(KeyboardInterrupt):
        search()
    assert (timed, list(memory.glob("*"))) == (TILES[:3], [])
    with monkeypatch.context() as renewed:  # weights, whose answers are others
        files = {**provenance.files, "params_shard_0.bin": (1, "0" * 64)}
        new = replace(provenance, files=files)
        renewed.setattr(tune, "read_provenance", lambda _: new)
        with pytest.raises(KeyboardInterrupt):
            search()
        assert timed == TILES[:3]

    ends_at = ""
    capsys.readouterr()
    assert search() == [TILES[-2]]
    assert timed == TILES[2:]
    assert f"`{TILES[1]}` was timed before" in capsys.readouterr().err
    assert kept_choice(folder, provenance, devices) == TILES[-2]
    assert kept_choice(folder, provenance, dict.fromkeys(TILES, "Apple M10")) is None
    assert search() == [TILES[-2]]
    assert timed == TILES, "a search that came to its end is made anew"
    assert "--libraries all" not in capsys.readouterr().err
    devices = {TILES[0]: "Apple M9"}
    assert [one.name for one in tune.tune(folder, Check.OFF, Console()) if one.chosen] == TILES[:1]
    assert "--target metal --libraries all --only library" in capsys.readouterr().err


def test_where_none_is_right_nothing_is_kept(
    tiny_package: Path, tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = [(record("cpu", "cpu"), None), (record("other", "cpu"), None)]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    monkeypatch.setattr(tune, "_attempt", lambda *_: (Timing("it is off"), None))
    with pytest.raises(ArtifactError, match="no library computes right here: `cpu`: it is off"):
        tune.tune(folder, Check.OFF, Console(quiet=True))
    assert list(memory.glob("*")) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import time; time.sleep(60)", "it takes longer than 1 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it ended with signal SIGKILL"),
        ("raise SystemExit('gone')", "it ended with status 1: gone"),
    ],
)
def test_a_library_that_hangs_or_crashes_is_a_result(
    code: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crash.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tune, "_CHILD", "crash")
    timing, logits = tune._attempt(
        tmp_path, "cpu", Check.ONCE, Sizes(), 1 if "sleep" in code else 60
    )
    assert (timing.problem, logits) == (expected, None)


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_leaves_the_choice_as_it_was(
    tiny_package: Path, tmp_path: Path, memory: Path
) -> None:
    libraries = [(record("cpu", "cpu"), None), (record("other", "cpu"), None)]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    command = [*CHAT, str(folder), "--tune"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # A slow machine is told first that the package is checked.
        assert any("timing `cpu`" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    assert list(memory.glob("*")) == []


def test_device_and_tune_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(tmp_path), "--tune", "--device", "cpu"]) == 2
    assert "leave out --device" in capsys.readouterr().err

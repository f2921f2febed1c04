"""The benchmark of chats in Chromium, on a package made of a library; no claim about speed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.child import run_within
from tests.web.compiled import DRAFTED, Compiler
from tests.web.dawn import HERE, TIMEOUT_S, library_of

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BENCHMARK = HERE.parents[1] / "benchmarks" / "browser"
DRAFTS = 2
TOKENS = 24


def test_rounds_of_a_drafter_with_random_weights_are_timed(
    browser: str, fast_module: Path, compiled: Compiler, tmp_path: Path
) -> None:
    assert fast_module.is_dir()  # built into web/dist, from where the benchmark serves it
    tiny = compiled(DRAFTED, "webgpu", "q4f32")
    library, package = tmp_path / "library", tmp_path / "package"
    library.mkdir()
    shutil.copy(tiny / library_of(tiny), library / "model.wasm")
    shutil.copy(tiny / "provenance.json", library)
    made = [sys.executable, BENCHMARK / "package.py", library, tiny, package]
    written = run_within(TIMEOUT_S, list(map(str, made)))
    assert written.returncode == 0, written.stderr
    assert (package / "params_shard_drafter_0.bin").stat().st_size > 0

    asked = ["--modes", "fast", "--drafts", str(DRAFTS), "--tokens", str(TOKENS)]
    asked += ["--repeats", "1", "--prompt", "60"]
    run = ["node", str(BENCHMARK / "run.mjs"), "--package", str(package), *asked]
    done = run_within(TIMEOUT_S, run, env={**os.environ, "CHROMIUM": browser})
    assert done.returncode == 0, done.stderr
    fast, drafted = map(json.loads, done.stdout.splitlines())
    assert [line["errors"] for line in (fast, drafted)] == [[], []]
    assert "round_ms" not in fast
    assert drafted["mode"] == f"drafts-{DRAFTS}"
    stats = drafted["stats"]
    assert stats["draftedTokens"] > TOKENS  # of two replies of so many tokens, and of others
    assert drafted["guessed_share"] < 0.2, "random weights guess wrong"
    assert drafted["computed_tokens_per_s"]["70%"] == pytest.approx(
        1000 * (1 + 0.7 + 0.7**2) / drafted["round_ms"]["median"], rel=1e-3
    )

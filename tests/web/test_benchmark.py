"""The benchmark of WebGPU packages runs, on a library without weights; no claim about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.web.compiled import DRAFTED, Compiler
from tests.web.dawn import HERE, TIMEOUT_S, VulkanDriver, library_of

pytestmark = [pytest.mark.dawn, pytest.mark.slow]

RUN = HERE.parents[1] / "benchmarks" / "webgpu" / "run.py"
CONTEXT = 40
PROMPT = 30
ROWS = 3


def test_every_measurement_gives_a_line(
    compiled: Compiler, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    package = compiled(DRAFTED, "webgpu", "q4f16")
    bare = tmp_path / "package"
    bare.mkdir()
    for name in (library_of(package), "provenance.json"):
        (bare / name).write_bytes((package / name).read_bytes())

    lines = {line["measure"]: line for line in _run(bare, lavapipe, tmp_path)}

    first, last = ["read_bandwidth", "load", "smoke", "decode"], ["prefill", "memory"]
    assert list(lines) == [*first, "verify", "draft", *last]
    assert all(line["recipe"] == "q4f16" and line["validation"] for line in lines.values())
    assert lines["read_bandwidth"]["bytes_per_second"] > 0
    assert lines["load"]["memory"]["buffers_bytes"] <= lines["load"]["planned_memory_bytes"]
    assert lines["smoke"]["finite"]
    assert lines["smoke"]["different_tokens"] > 1
    decode = lines["decode"]
    assert decode["context"] == CONTEXT
    assert decode["copies"] == 0
    assert sum(kernel["launches"] for kernel in decode["kernels"]) == decode["launches"]
    assert decode["replayed_ms"]["median"] > 0
    weights = sum(kernel["weight_bytes"] for kernel in decode["kernels"])
    assert weights >= decode["weight_bytes_per_token"]
    for measure in ("verify", "draft"):
        launched = sum(kernel["launches"] for kernel in lines[measure]["kernels"])
        assert launched == lines[measure]["launches"]
        assert lines[measure]["replayed_ms"]["median"] > 0
    assert lines["verify"]["rows"] == ROWS
    assert lines["prefill"]["tokens"] == PROMPT
    assert lines["prefill"]["tokens_per_second"] > 0


def _run(package: Path, driver: VulkanDriver, folder: Path) -> list[dict[str, Any]]:
    results = folder / "results.jsonl"
    command = [sys.executable, str(RUN), "--package", str(package), "--results", str(results)]
    command += ["--context", str(CONTEXT), "--prefill", str(PROMPT), "--repeats", "1"]
    command += ["--tokens", "2", "--no-sampler", "--verify", str(ROWS)]
    environment = driver.environment(folder)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in results.read_text().splitlines()]

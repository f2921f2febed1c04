"""The lines that the peer's benchmark makes of what `llama-bench` prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer.llama_cpp import measured, parse

FIXED = {
    "build_commit": "abc1234",
    "backends": "Vulkan",
    "gpu_info": "a GPU",
    "model_type": "gemma4 E2B Q4_0",
    "model_size": 1000,
    "n_ubatch": 512,
    "flash_attn": -1,
    "type_k": "f16",
    "type_v": "f16",
    "n_threads": 8,
}


def row(prompt: int, generated: int, depth: int, samples_ns: list[int]) -> dict[str, Any]:
    lengths = {"n_prompt": prompt, "n_gen": generated, "n_depth": depth}
    return {**FIXED, **lengths, "samples_ns": samples_ns}


def stand_in(folder: Path, rows: list[dict[str, Any]], status: int = 0) -> Path:
    """A program that prints the rows as `llama-bench` does."""
    text = "\n".join(json.dumps(each) for each in rows)
    program = folder / "llama-bench"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({status})\n", encoding="utf-8"
    )
    program.chmod(0o755)
    return program


def arguments(program: Path) -> list[str]:
    return ["--bench", str(program), "--gguf", "folder/e2b.gguf", "--model", "gemma-4-E2B-it"]


def test_only_the_lengths_asked_for_become_lines(tmp_path: Path) -> None:
    rows = [
        row(1024, 0, 0, [512_000_000, 1_024_000_000, 1_024_000_000]),
        row(0, 64, 0, [1]),
        row(1024, 0, 32, [1]),
        row(0, 64, 32, [128_000_000, 64_000_000, 192_000_000]),
    ]
    prefill, decode = measured(parse(arguments(stand_in(tmp_path, rows))))
    assert (prefill["measure"], prefill["tokens_per_second"]) == ("prefill", 1000.0)
    assert (decode["measure"], decode["context"]) == ("decode", 32)
    assert decode["ms_per_token"] == {"median": 2.0, "spread": 1.0, "all": [2.0, 1.0, 3.0]}
    assert decode["versions"] == {"llama.cpp": "0.5.0 (abc1234)"}
    assert decode["command"].startswith("llama-bench -m e2b.gguf -p 1024 -n 64 -d 0,32,1024")


def test_a_failure_is_reported_after_what_was_measured(tmp_path: Path) -> None:
    lines = measured(parse(arguments(stand_in(tmp_path, [row(1024, 0, 0, [1000])], status=3))))
    assert next(lines)["measure"] == "prefill"
    with pytest.raises(subprocess.CalledProcessError):
        next(lines)

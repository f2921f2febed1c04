"""A layer of the largest tensors there are, through the whole conversion, in bounded memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.child import run_within

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MAX_MEMORY_BYTES = 1 << 30  # half of what a whole model may take; it does not grow with layers
CONVERT = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from benchmarks.convert_weights import Sample, convert

sample = Sample("gemma-4-26B-A4B-it", "q4f16", layers=1)
print(json.dumps(asdict(convert(sample, None, Path(sys.argv[1])))))
"""


def test_experts_of_half_a_billion_weights_are_converted_in_bounded_memory(tmp_path: Path) -> None:
    """In a process of its own, whose memory is its own, and whose end is seen if it is killed."""
    done = run_within(400, [sys.executable, "-c", CONVERT, str(tmp_path)], cwd=ROOT)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout)
    assert found["checkpoint_bytes"] > 1 << 30
    assert found["stored_bytes"] == sum(path.stat().st_size for path in tmp_path.glob("*.bin"))
    assert found["peak_memory_bytes"] < MAX_MEMORY_BYTES

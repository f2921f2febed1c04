"""A layer of the largest tensors there are, through the whole conversion, in bounded memory."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from benchmarks.convert_weights import Measurement, Sample, convert

pytestmark = pytest.mark.slow

MAX_MEMORY_BYTES = 1 << 30  # half of what a whole model may take; it does not grow with layers


def test_experts_of_half_a_billion_weights_are_converted_in_bounded_memory(tmp_path: Path) -> None:
    sample = Sample("gemma-4-26B-A4B-it", "q4f16", layers=1)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its memory is its own
        found: Measurement = pool.submit(convert, sample, None, tmp_path).result()
    assert found.checkpoint_bytes > 1 << 30
    assert found.stored_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.bin"))
    assert found.peak_memory_bytes < MAX_MEMORY_BYTES

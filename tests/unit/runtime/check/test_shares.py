"""Shares of a device's peaks, beside what a package's own tensors come to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.runtime.check.peaks import Peaks
from gemma4_compile.runtime.check.shares import Yardstick
from gemma4_compile.runtime.engine.engine import Engine

PEAKS = Peaks("shares of a device", 1e9, 1e12)


def test_a_package_tells_what_its_steps_do(tiny_package: Path) -> None:
    """All matrices but the table of per-layer embeddings, each once a token, in float32."""
    engine = Engine.open(tiny_package)
    metadata = json.loads(engine.model.library.metadata())
    matrices = sum(
        one["shape"][0] * one["shape"][1]
        for one in metadata["params"]
        if len(one["shape"]) == 2 and not one["name"].startswith("embed_tokens_per_layer.")
    )
    found = Yardstick.of(engine)
    assert found.work is not None
    assert found.work.products + found.work.chunk_products == matrices
    assert found.work.weight_bytes == 4 * matrices
    assert found.describe() == found.peaks.source  # of a processor
    assert found.of_bandwidth(0, 50.0) is None
    assert found.of_arithmetic(1, 1.0) is None

    known = replace(found, peaks=PEAKS)
    assert known.of_bandwidth(0, 50.0) == pytest.approx(50 * 4 * matrices / 1e9)
    looks = sum(4 * one.whole_layers * one.query_width for one in found.work.attention)
    operations = 2 * matrices + looks  # a prompt of one token, which looks at itself
    assert known.of_arithmetic(1, 0.5) == pytest.approx(operations / 0.5 / 1e12)


@pytest.mark.parametrize("on_host", [False, True])
def test_a_package_of_before_has_no_shares_and_a_hint(on_host: bool) -> None:
    older = Yardstick(None, PEAKS, 64, experts_on_host=on_host)
    assert (older.of_bandwidth(1, 1.0), older.of_arithmetic(1, 1.0)) == (None, None)
    assert "compile the package again" in older.describe()

"""A whole prompt by Metal 4's tensor operations, emulated, next to transformers on the same shards.

Its weights are rounded to float16 on their way, those of tokens that are decoded are not.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import tvm

from gemma4_compile.runtime import Engine
from tests import hf, packages, tolerances
from tests.metal import emulator
from tests.metal.conftest import metal_target

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PROMPT, DECODED = 36, 2  # three chunks, the last of which is no tile
# A block has four matmuls in a chain, whose results each have one more rounding's error.
ROUNDINGS = 4 + 4


def test_logits_are_those_of_transformers_and_of_tokens_one_by_one(
    metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    del metal_device
    sources: list[str] = []

    def note(source: str) -> str:
        sources.append(source)
        return source

    ids = [2, *np.random.default_rng(0).integers(107, 1000, PROMPT + DECODED - 1).tolist()]
    with metal_target(simdgroup_matrices=True, tensor_operations=True), emulator.mistake(note):
        package = packages.compile_package(
            *("tiny", "q4f16", tmp_path / "package"),
            context_length=64,
            target="metal",
            optimised=False,
        )
        engine = Engine.open(package)
        found = [engine.prefill(ids[:PROMPT]), *(engine.decode(one) for one in ids[PROMPT:])]
        engine.clear()
        engine.prefill(ids[:1])
        *_, alone = (engine.decode(one) for one in ids[1:PROMPT])
    assert sum("gemma4_product.run(" in source for source in sources) >= 5
    allowed = tolerances.LOGITS_F16 * sqrt(ROUNDINGS / 4)
    truth = hf.logits(hf.tiny(package, "q4f16"), ids)[PROMPT - 1 :]
    for one, expected in zip(found, truth, strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=allowed)
    np.testing.assert_allclose(found[0], alone, rtol=0, atol=allowed)
    assert (found[0] != alone).any(), "other kernels"

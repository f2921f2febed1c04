"""What the plan counts of a short chunk whose keys are divided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.targets import TargetSpec, target_spec


def dividing(*, divides: bool) -> TargetSpec:
    spec = target_spec("cuda")
    chunks = replace(spec.tuning.short_chunks, divides_keys=divides)
    return replace(spec, tuning=replace(spec.tuning, short_chunks=chunks))


@pytest.mark.parametrize(
    ("preset", "quant", "nbytes"),
    [
        # 132 multiprocessors * 32 rows of a block are 528 places of 8 heads: sums of 512 channels,
        # a highest score and a sum of weights, all float32.
        ("gemma-4-E2B-it", "q4f16", 528 * 8 * (512 + 2) * 4),
        ("gemma-4-E2B-it", "q4f32", 0),  # keys in float32 have no kernel on tensor cores
        ("gemma-4-12B-it", "q4f16", 0),  # its 16 heads are blocks enough
    ],
)
def test_memory_of_splits_is_planned(preset: str, quant: str, nbytes: int) -> None:
    config = Gemma4Config.from_preset(preset)
    divided, whole = (
        make_plan(config, quant, dividing(divides=divides), 8192, 512) for divides in (True, False)
    )
    assert divided.activation_bytes - whole.activation_bytes == nbytes
    assert divided.device_memory_bytes - whole.device_memory_bytes == nbytes

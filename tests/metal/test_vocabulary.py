"""Kernels of a vocabulary that no vector and no word of the grammar's bitmask divides."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.base import Operator
from tests import models
from tests.metal import emulator
from tests.metal.emulated_kernels import EmulatedCases, link_cases
from tests.numerics.kernel_cases import make_case, operators


def operators_of(vocab: int) -> tuple[Operator, ...]:
    text = {**models.E2B_LIKE, "vocab_size": vocab, "vocab_size_per_layer_input": vocab}
    config = Gemma4Config.from_dict(models.config_file(text, "hub", "float32"))
    return tuple(dict.fromkeys(operators(config, "q4f16", emulator.SPEC, None)))


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [250])
def test_kernels_of_any_vocabulary(
    vocab: int, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    usual = set(operators_of(256))
    cases = [make_case(o, i) for i, o in enumerate(operators_of(vocab)) if o not in usual]
    kinds = {case.operator.kind for case in cases}
    assert {"embedding", "bitmask", "top_p_histogram", "sample_top_p", "softmax_probs"} <= kinds
    library = link_cases(cases, emulator.SPEC, tmp_path)
    EmulatedCases.load(cases, metal_device, library).check()

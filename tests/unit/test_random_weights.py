"""Random weights of a benchmark know the bits of what a library's metadata lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_weights import Filler, Weight, vocabulary_of
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.compile.own_schemes import with_own_schemes
from gemma4_compile.compile.released_phones import as_phone
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.quantization.matrix import layout_of
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.recipe_file import with_overrides


@pytest.mark.parametrize("quant", ["mobile", "q4f16m", "q4kf16m"])
def test_bits_and_columns_are_those_of_the_plan(quant: str) -> None:
    request = CompileRequest("gemma-4-E2B-it", "webgpu", quant, Path("out"))
    with open_source(request.model, None, weights=False) as opened:
        source = as_phone(request, opened)
    table = model_parameters(source.config, ALL_COMPONENTS)
    request = with_own_schemes(request, source, table)
    plan = storage_plan(table, with_overrides(quant, request.overrides), 128 << 20)
    tensors = [tensor for stored in plan for tensor in stored.tensors]
    weights = [Weight(one.name, one.shape, one.dtype) for one in tensors]
    filler = Filler(weights)
    assert vocabulary_of(weights) == source.config.vocab_size
    for stored in plan:
        for index, _ in enumerate(stored.row_splits):
            part = f".part{index}" if len(stored.row_splits) > 1 else ""
            if len(stored.parameter.shape) == 2 and layout_of(stored).bits:
                found = filler.integers(stored.parameter.name, part)
                assert found == (layout_of(stored).bits, stored.parameter.shape[1])


@pytest.mark.parametrize("name", ["x.pairs", "x.pairs.part1", "x.steps.weight"])
def test_other_values_are_finite_and_small(name: str) -> None:

    weight = Weight(name, (4, 64), "uint32" if "pairs" in name else "float32")
    data = np.concatenate(list(Filler([weight]).pieces(weight)))
    assert data.nbytes == weight.nbytes
    values = data.view(np.float32)
    if "pairs" in name:
        values = (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert np.isfinite(values).all()
    assert 0 < np.abs(values).max() < 1


def test_a_machine_with_numpy_alone_makes_them() -> None:
    """It has the GPU, and no compiler."""
    code = "import sys; import benchmarks.random_weights; print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy"} == {"numpy", "tvm", "tvm_ffi", "torch"} & set(run.stdout.split())


def test_blocks_with_minima_have_units_of_both_sides_of_zero() -> None:
    weights = [Weight("x.q_weight", (64, 64), "uint32"), Weight("x.q_scale", (64, 8), "uint32")]
    words = np.concatenate(list(Filler(weights).pieces(weights[1]))).view("<u4").reshape(-1, 4)
    scales = (words[:, 0] & np.uint32(0xFFFF0000)).view(np.float32)
    minima = (words[:, 0] << np.uint32(16)).view(np.float32)
    assert scales.min() >= 2**-13
    assert scales.max() < 2**-12
    assert minima.min() >= 2**-10
    assert minima.max() < 2**-9

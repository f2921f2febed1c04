"""Matmuls of a few rows whose weights come by stages, on an emulated device.

A copy is there only when it has ended: what reads a stage before finds other bytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.targets import TargetSpec
from gemma4_compile.targets.staged_tuning import StagedTuning
from tests.marks import slow_unless
from tests.metal import emulator
from tests.metal.emulated_kernels import check_cuda_cases, is_found, link_cases
from tests.metal.test_mistakes import other
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.numerics.linear.test_few_row_linear import int8

PAIRS, GATE = Epilogue.GELU_PAIRS.value, Epilogue.GELU_GATE.value
CASES: dict[str, tuple[tuple[int, ...], int, Linear]] = {
    # Tiles, warps, bands, resident blocks, stages, x by steps; rows of x; the matmul. Warps have
    # one step more or less than others, and fewer than there are stages; rows end within a block.
    "x before": ((4, 2, 2, 1, 3, 0), 5, int8(4, 1280, (64, 40), tiled=True)),
    "x by steps": ((2, 3, 1, 1, 2, 1), 9, int8(4, 2048, (40,))),
    "8 bits": ((2, 2, 2, 1, 4, 0), 8, int8(8, 384, (64,), epilogue=GATE, ple_width=5 * 64)),
    "8 bits by steps": ((4, 1, 1, 1, 3, 1), 3, int8(8, 512, (72,), tiled=True)),
    "wide scales": ((4, 2, 1, 1, 2, 1), 1, int8(4, 768, (64, 48), "float32", epilogue=PAIRS)),
    "packed": (
        (4, 2, 2, 1, 3, 0),
        9,
        int8(4, 512, (192,), epilogue=PAIRS, packed_out=True, tiled=True, tiled_out=True),
    ),
}
QUICK = ("x before", "8 bits by steps")


def case_of(name: str) -> tuple[KernelCase, TargetSpec]:
    block, rows, operator = CASES[name]
    layout, spec = operator.layout, emulator.WARPGROUPS
    staged = StagedTuning(((layout.rows, layout.cols, layout.bits, *block),))
    cores = replace(spec.tuning.few_row_tensor_cores, min_rows=1)
    tuning = replace(spec.tuning, staged=staged, few_row_tensor_cores=cores)
    return make_case(operator, len(name), rows=rows), replace(spec, tuning=tuning)


@pytest.mark.parametrize("name", slow_unless(lambda name: name in QUICK, list(CASES)))
def test_every_kernel_computes_its_definition(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    case, spec = case_of(name)
    texts: list[str] = []

    def note(source: str) -> str:
        texts.append(source)
        return source

    with emulator.mistake(note):
        library = link_cases([case], spec, tmp_path)
        check_cuda_cases([case], library, metal_device, spec)
    assert "gemma4_begin_stage_copy" in "".join(texts)


MISTAKES = {
    "weights before they are there": other(r"gemma4_end_stage_copy\([^;]*;", ""),
    "no barrier of a step": other(r"gemma4_warp_barrier\(\);", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    case, spec = case_of("x by steps")
    library = link_cases([case], spec, tmp_path)
    assert is_found(MISTAKES[name], [case], library, metal_device, spec)

"""Kernels for CUDA's tensor cores against the definitions, executed on an emulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import target_spec
from tests.fixed_scheme import FixedLayout
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, link_cases
from tests.numerics.kernel_cases import make_case
from tests.numerics.tensor_cores import OPERATORS, few_row_cases, two_kernel_cases

OTHER_FORMS = [
    BoundedLinear(CHUNK, FixedLayout(bits, "float16", group, 64, (96,)), "float16", clipped=True)
    for bits, group in ((0, 0), (8, 32))
]
"""They have other kernels where there are tensor cores, too."""


@pytest.fixture(scope="module")
def emulated(
    metal_device: tvm.runtime.Device, tmp_path_factory: pytest.TempPathFactory
) -> EmulatedCases:
    cases = [make_case(operator, seed) for seed, operator in enumerate((*OPERATORS, *OTHER_FORMS))]
    library = link_cases(cases, emulator.TENSOR_CORES, tmp_path_factory.mktemp("kernels"))
    return EmulatedCases.load(cases, metal_device, library)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_computes_its_definition(order: str, emulated: EmulatedCases) -> None:
    emulated.check(order)


CUDA = target_spec("cuda").tuning.few_row_tensor_cores
SIZES = {
    "many warps a row": replace(CUDA, min_rows=1),
    "many rows a block": replace(CUDA, multiprocessors=1, min_rows=1),  # as in large matrices
    "another kernel for one and two rows": replace(CUDA, direct_bytes=1, min_rows=1),
}


@pytest.fixture(scope="module", params=SIZES)
def few_rows(
    request: pytest.FixtureRequest,
    metal_device: tvm.runtime.Device,
    tmp_path_factory: pytest.TempPathFactory,
) -> EmulatedCases:
    sizes = SIZES[request.param]
    tuning = replace(emulator.TENSOR_CORES.tuning, few_row_tensor_cores=sizes)
    spec = replace(emulator.TENSOR_CORES, tuning=tuning)
    cases = list(two_kernel_cases() if sizes.direct_bytes == 1 else few_row_cases())
    library = link_cases(cases, spec, tmp_path_factory.mktemp("few_rows"))
    return EmulatedCases.load(cases, metal_device, library)


@pytest.mark.slow  # a chunk's are those above
@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_of_a_few_rows_computes_its_definition(
    order: str, few_rows: EmulatedCases
) -> None:
    few_rows.check(order)

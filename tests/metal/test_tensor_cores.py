"""Kernels for CUDA's tensor cores against the definitions, executed on an emulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.targets.tuning import FewRowTensorCoreTuning
from tests.fixed_scheme import FixedLayout
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, link_cases
from tests.numerics.kernel_cases import make_case
from tests.numerics.tensor_cores import OPERATORS, few_row_cases

OTHER_FORMS = [
    BoundedLinear(None, FixedLayout(bits, "float16", group, 64, (96,)), "float16", clipped=True)
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


@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_computes_its_definition(order: str, emulated: EmulatedCases) -> None:
    emulated.check(order)


@pytest.fixture(scope="module", params=["many warps a row", "many rows a block"])
def few_rows(
    request: pytest.FixtureRequest,
    metal_device: tvm.runtime.Device,
    tmp_path_factory: pytest.TempPathFactory,
) -> EmulatedCases:
    tuning = emulator.TENSOR_CORES.tuning
    if request.param == "many rows a block":  # as large matrices have them
        sizes = FewRowTensorCoreTuning(min_blocks=1, row_warps=1)
        tuning = replace(tuning, few_row_tensor_cores=sizes)
    spec, cases = replace(emulator.TENSOR_CORES, tuning=tuning), list(few_row_cases())
    library = link_cases(cases, spec, tmp_path_factory.mktemp("few_rows"))
    return EmulatedCases.load(cases, metal_device, library)


@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_of_a_few_rows_computes_its_definition(
    order: str, few_rows: EmulatedCases
) -> None:
    few_rows.check(order)

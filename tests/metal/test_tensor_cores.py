"""Kernels for CUDA's tensor cores against the definitions, executed on an emulated device."""

from __future__ import annotations

import pytest
import tvm

from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, link_cases
from tests.numerics.kernel_cases import make_case
from tests.numerics.tensor_cores import OPERATORS


@pytest.fixture(scope="module")
def emulated(
    metal_device: tvm.runtime.Device, tmp_path_factory: pytest.TempPathFactory
) -> EmulatedCases:
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    library = link_cases(cases, emulator.TENSOR_CORES, tmp_path_factory.mktemp("kernels"))
    return EmulatedCases.load(cases, metal_device, library)


@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_computes_its_definition(order: str, emulated: EmulatedCases) -> None:
    emulated.check(order)

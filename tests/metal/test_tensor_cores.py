"""Kernels for CUDA's tensor cores against the definitions, executed on an emulated device."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import tvm
from tvm import relax

from tests.metal import emulator
from tests.metal.test_kernels import run_cases
from tests.numerics.dawn_kernels import cases_executable
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.numerics.tensor_cores import OPERATORS


@pytest.fixture(scope="module")
def cases() -> list[KernelCase]:
    return [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]


@pytest.fixture(scope="module")
def machine(
    cases: list[KernelCase],
    metal_device: tvm.runtime.Device,
    tmp_path_factory: pytest.TempPathFactory,
) -> relax.VirtualMachine:
    path: Path = tmp_path_factory.mktemp("kernels") / "cases.so"
    emulator.link(cases_executable(cases, emulator.TENSOR_CORES), path, emulator.TENSOR_CORES)
    return relax.VirtualMachine(tvm.runtime.load_module(str(path)), metal_device)


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_every_kernel_computes_its_definition(
    order: str,
    cases: list[KernelCase],
    machine: relax.VirtualMachine,
    metal_device: tvm.runtime.Device,
) -> None:
    reverse = order == "descending"
    with emulator.threads_in_descending_order() if reverse else nullcontext():
        results = run_cases(cases, machine, metal_device)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)

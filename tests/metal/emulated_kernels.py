"""Compiles kernels of many operators into one library and runs them on the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import relax

from gemma4_compile.targets import TargetSpec, cuda
from tests.metal import emulator
from tests.numerics.dawn_kernels import cases_executable
from tests.numerics.kernel_cases import Array, KernelCase, differences

ORDERS = ("ascending", "descending")  # of threadgroups, and of threads between two barriers


def link_cases(cases: Sequence[KernelCase], spec: TargetSpec, folder: Path) -> Path:
    """A library with a function for each case."""
    path = folder / "cases.so"
    emulator.link(cases_executable(cases, spec), path, spec)
    return path


@dataclass(frozen=True)
class EmulatedCases:
    """Cases and the machine that runs them."""

    cases: Sequence[KernelCase]
    device: tvm.runtime.Device
    machine: relax.VirtualMachine

    @classmethod
    def load(
        cls, cases: Sequence[KernelCase], device: tvm.runtime.Device, library: Path
    ) -> EmulatedCases:
        """Cases of a library that went through a file as a package's does."""
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)
        return cls(cases, device, machine)

    def run(self, order: str = ORDERS[0]) -> list[tuple[Array, ...]]:
        """For each case the arrays that its kernel changed."""
        reverse = order == "descending"
        with emulator.threads_in_descending_order() if reverse else nullcontext():
            return [self._run(index, case) for index, case in enumerate(self.cases)]

    def _run(self, index: int, case: KernelCase) -> tuple[Array, ...]:
        args = {
            position: tvm.runtime.tensor(arg, self.device)
            for position, arg in enumerate(case.args)
            if not isinstance(arg, int)
        }
        self.machine[f"case_{index}"](*args.values())
        return tuple(args[position].numpy() for position in case.changed)

    def check(self, order: str = ORDERS[0]) -> None:
        """Hold the results against the definitions."""
        assert not (wrong := differences(self.cases, self.run(order))), "\n".join(wrong)


def check_cuda_cases(
    cases: Sequence[KernelCase],
    library: Path,
    device: tvm.runtime.Device,
    spec: TargetSpec = cuda.DEFAULT,
) -> None:
    """Hold a library's kernels for CUDA against the definitions, in both orders."""
    with emulator.memory_of_cuda(spec):
        emulated = EmulatedCases.load(cases, device, library)
        for order in ORDERS:
            emulated.check(order)


def is_found(
    change: Callable[[str], str],
    cases: Sequence[KernelCase],
    library: Path,
    device: tvm.runtime.Device,
    spec: TargetSpec = cuda.DEFAULT,
) -> bool:
    """Return whether kernels for CUDA whose source is changed differ in one of the orders."""
    with emulator.mistake(change), emulator.memory_of_cuda(spec):
        emulated = EmulatedCases.load(cases, device, library)
        return any(differences(cases, emulated.run(order)) for order in ORDERS)


def check_both_orders(
    cases: Sequence[KernelCase], spec: TargetSpec, device: tvm.runtime.Device, folder: Path
) -> list[str]:
    """Hold kernels' results against the definitions; the texts that were compiled."""
    sources: list[str] = []

    def note(source: str) -> str:
        sources.append(source)
        return source

    with emulator.mistake(note):
        emulated = EmulatedCases.load(cases, device, link_cases(cases, spec, folder))
        for order in ORDERS:
            emulated.check(order)
    return sources

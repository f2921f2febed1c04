"""A matmul of a few rows for the fake CUDA: large enough for two kernels, and still small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gemma4_compile.targets import link, target_spec
from tests.numerics.dawn_kernels import cases_executable
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.numerics.linear.test_few_row_linear import MOST, int8

OPERATOR = int8(4, 96, (64,))


def cases() -> list[KernelCase]:
    """The matmul of one to nine rows."""
    return [make_case(OPERATOR, 0, rows=rows) for rows in range(1, MOST + 1)]


def compile_cases(library: Path) -> None:
    """Link them; every matrix counts as a large one."""
    spec = target_spec("cuda")
    sizes = replace(spec.tuning.few_row_tensor_cores, direct_bytes=1, min_rows=1)
    spec = replace(spec, tuning=replace(spec.tuning, few_row_tensor_cores=sizes))
    link(cases_executable(cases(), spec), library, spec)

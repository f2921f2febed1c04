"""Compiles kernels of many operators into one WebGPU library and runs them on Dawn in Node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax, tirx

from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.targets import TargetSpec, link
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import has_subgroup_matrices
from gemma4_compile.targets.webgpu import link_with
from tests.numerics.emulated_matrices import emulated
from tests.numerics.kernel_cases import Array, KernelCase
from tests.web.dawn import SUBGROUP, VulkanDriver, run_driver

DRIVER = "../numerics/dawn_kernels.mjs"


def cases_executable(cases: Sequence[KernelCase], spec: TargetSpec) -> relax.VMExecutable:
    """A function `case_I` for each case; outputs are arguments."""
    builder = relax.BlockBuilder()
    for index, case in enumerate(cases):
        variables, args = [], []
        for position, arg in enumerate(case.args):
            if isinstance(arg, int):
                args.append(tirx.const(arg, "int64"))
                continue
            kind = relax.TensorType(arg.shape, str(arg.dtype))
            variables.append(relax.Var(f"a{position}", kind))
            args.append(variables[-1])
        with builder.function(f"case_{index}", variables):
            kernel = builder.add_func(case.operator.prim_func(), case.operator.name)
            kinds = [args[position].ty for position in case.changed]
            with builder.dataflow():
                call = relax.call_tir_inplace(kernel, args, list(case.changed), kinds)
                result = builder.emit_output(builder.emit(call))
            builder.emit_func_output(result)
    return generate(lower(builder.get(), spec), spec)


def run_on_dawn(
    cases: Sequence[KernelCase],
    spec: TargetSpec,
    driver: VulkanDriver,
    folder: Path,
    subgroup: int = SUBGROUP,
    *,
    optimised: bool = False,
    write: Callable[[str], str] = emulated,
) -> list[tuple[Array, ...]]:
    """For each case the arrays that its kernel changed; lavapipe's subgroups are set.

    `optimised` is for large kernels, which take longer to run than to compile. `write` makes the
    text of a kernel whose target has subgroup matrices.
    """
    library = folder / "model.wasm"
    executable = cases_executable(cases, spec)
    if has_subgroup_matrices(spec):  # which no software driver has
        link_with(executable, library, spec, None, write)
    else:
        link(executable, library, spec)
    jobs: list[dict[str, Any]] = []
    for index, case in enumerate(cases):
        args: list[Any] = []
        for position, arg in enumerate(case.args):
            if isinstance(arg, int):
                continue  # a constant of the compiled function
            file = f"{index}-{position}.bin"
            arg.tofile(folder / file)
            entry = {"file": file, "shape": arg.shape, "dtype": str(arg.dtype)}
            if position in case.changed:
                entry["save"] = f"{index}-{position}.out"
            args.append(entry)
        jobs.append({"function": f"case_{index}", "args": args})
    job = {"library": str(library), "output": str(folder), "cases": jobs}
    told = run_driver(DRIVER, job, folder, driver.environment(folder, subgroup, optimised))
    smallest = told["device"]["subgroupMinSize"]
    assert spec.simd_width <= smallest, f"subgroups of {smallest} threads: nothing is shown"
    results = []
    for index, case in enumerate(cases):
        files = [f"{index}-{position}.out" for position in case.changed]
        found = [
            np.fromfile(folder / file, dtype=expected.dtype).reshape(expected.shape)
            for file, expected in zip(files, case.expected, strict=True)
        ]
        results.append(tuple(found))
    return results

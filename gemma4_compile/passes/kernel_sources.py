"""The text of a library's kernels, as the device's own compiler gets it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import tvm
from tvm import relax, tirx

from gemma4_compile.passes.lowering import tir_pipeline
from gemma4_compile.targets import TARGETS
from gemma4_compile.targets.spec import TargetSpec

_HEADING = re.compile(r"^// Function: (\w+)\n", re.MULTILINE)


def kernel_sources(executable: relax.VMExecutable, spec: TargetSpec) -> dict[str, str]:
    """Sources by file name.

    One file a kernel for WebGPU and Metal; for CUDA, where TVM writes one source, `kernels.cu`.
    Empty for a target without kernels of a device.
    """
    return _sources(executable.mod, spec) if spec.is_gpu else {}


def kernel_source(func: tirx.PrimFunc, name: str, spec: TargetSpec) -> str:
    """The text of one scheduled kernel; its loops where the target is no device of its own."""
    func = func.with_attr("global_symbol", name)
    if not spec.is_gpu:
        return str(func.script())
    target = spec.tvm_target()
    with target:
        built = tirx.build(tvm.IRModule({name: func}), target=target, pipeline=tir_pipeline(spec))
    (source,) = _sources(built, spec).values()
    return source


def _sources(library: tvm.runtime.Module, spec: TargetSpec) -> dict[str, str]:
    sources: dict[str, str] = {}
    write = TARGETS[spec.name].source
    for module in _imported(library):
        if module.kind != spec.code_generator:
            continue
        suffix = spec.source_suffix
        text = module.inspect_source()
        parts = _HEADING.split(text)
        if len(parts) == 1:
            sources["kernels" + suffix] = write(text, spec)
        # TVM's WebGPU module repeats the heading above each text.
        for name, source in zip(parts[1::2], parts[2::2], strict=True):
            if source.strip(" -/\n"):
                sources[name + suffix] = write(source, spec)
    return sources


def _imported(module: tvm.runtime.Module) -> Iterator[tvm.runtime.Module]:
    yield module
    for inner in module.imports:
        yield from _imported(inner)

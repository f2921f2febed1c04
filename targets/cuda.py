"""NVIDIA GPUs: a shared library for Linux with the kernels as PTX in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import tvm_ffi
from tvm import relax

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import TargetError
from gemma4_compile.system import nvidia
from gemma4_compile.targets import cpu
from gemma4_compile.targets.cuda_intrinsics import LowerCudaIntrinsics
from gemma4_compile.targets.cuda_launch_bounds import BoundRegisters
from gemma4_compile.targets.cuda_programmatic import begin_early
from gemma4_compile.targets.linker import cuda_image, fat_binary, ptx
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.spec import INT8, UNLIMITED, TargetSpec
from gemma4_compile.targets.target import Target
from gemma4_compile.targets.tuning import read_tuning

OLDEST_GPU = f"sm_{nvidia.OLDEST_GPU[0]}{nvidia.OLDEST_GPU[1]}"
"""Kernels need nothing that newer ones added."""

AMPERE, HOPPER = "sm_80", "sm_90a"
IMAGES = (OLDEST_GPU, AMPERE, HOPPER)
"""Oldest GPUs of the images of a library: what newer ones do in fewer instructions is in the texts
under a condition (docs/adr/0040). Hopper's is for no other GPU."""

DEFAULT = TargetSpec(
    name="cuda",
    limits="default",
    device_type=DeviceType.CUDA,
    code_generator="cuda",
    library_suffix=".so",
    max_threads_per_block=1024,
    max_shared_memory_bytes=48 * 1024,  # what a kernel gets without asking the driver for more
    max_storage_buffers=UNLIMITED,
    max_binding_bytes=None,
    max_grid_dim=65_535,
    max_grid_x=2**31 - 1,
    simd_width=32,
    adds_atomically=True,
    tensor_cores=True,
    warpgroups=True,
    has_older_images=True,
    programmatic_launch=True,
    asked_shared_memory_bytes=216 * 1024,  # of 227 KiB that GPUs with warpgroups have
    architecture=OLDEST_GPU,
    processor=cpu.DEFAULT.processor,
    tuning=read_tuning("cuda"),
    activations=INT8,
    source_suffix=".cu",
    joins_sequences=True,
    is_by_machine=True,
    compilers=("nvidia-cuda-nvrtc",),
)

LIMITS = {spec.limits: spec for spec in (DEFAULT,)}


def find_compiler() -> ptx.Nvrtc | ptx.Nvcc:
    """The compiler of the kernels; TargetError where there is none, or on another system."""
    if sys.platform != "linux":
        raise TargetError(
            f"target `cuda` does not support {sys.platform}",
            hint="compile on Linux; a GPU is not needed for it",
        )
    return ptx.find_compiler()


def link(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Link a shared library for Linux, with each of IMAGES in it; see `targets.target.Link`."""
    if spec.device_type is not DEFAULT.device_type:
        raise TargetError(f"a library for `{spec.name}` cannot be linked with CUDA kernels")
    compiler = find_compiler()

    def compile_source(source: str) -> bytes:
        if progress is not None:
            progress(f"compiling the kernels for {spec.architecture} and newer")
        source = begin_early(source)
        return fat_binary.fat_binary(
            {oldest: ptx.compile_ptx(source, oldest, compiler) for oldest in IMAGES}
        )

    def pack(module: tvm_ffi.Module, folder: Path) -> Path:
        return cuda_image.pack_imports(module, folder, compile_source)

    linker.link_library(executable, output, cpu.this_machine(), progress=progress, pack=pack)


TARGET = Target(
    LIMITS,
    link,
    cpu.this_machine,
    passes=lambda: (LowerCudaIntrinsics(), BoundRegisters()),
    source=lambda text, _spec: begin_early(text),
    check=find_compiler,
)

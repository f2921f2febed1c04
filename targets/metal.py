"""Metal: the GPU of Apple silicon, and the link of a .dylib on any machine, without Xcode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import tvm_ffi
from tvm import relax

from gemma4_compile.device_kinds import TENSOR_OPERATIONS, DeviceType
from gemma4_compile.errors import TargetError
from gemma4_compile.targets import cpu
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker.runtime_objects import Platform
from gemma4_compile.targets.metal_intrinsics import LowerMetalIntrinsics
from gemma4_compile.targets.metal_tensors import write_tensors
from gemma4_compile.targets.spec import FLOAT, TargetSpec
from gemma4_compile.targets.target import Target
from gemma4_compile.targets.tuning import read_tuning

DEFAULT = TargetSpec(
    name="metal",
    limits="default",
    device_type=DeviceType.METAL,
    code_generator="metal",
    library_suffix=".dylib",
    # A device takes 1024, but each kernel as many as its registers allow, 384 at worst, and nobody
    # here can ask Apple's compiler how many that is.
    max_threads_per_block=256,
    max_shared_memory_bytes=32 * 1024,
    max_storage_buffers=30,  # of 31; the last one carries a kernel's numbers
    max_binding_bytes=2**31,  # kernels count bytes and elements of a tensor in int32
    max_grid_dim=2**31 - 1,
    simd_width=32,
    processor="apple-m1",
    host_triple="arm64-apple-macos",
    tuning=read_tuning("metal"),
    activation_forms=(FLOAT,),  # Metal has no product of packed bytes
    source_suffix=".metal",
    joins_sequences=True,
    slots_apart=True,
)
"""Every Apple silicon GPU."""

SIMDGROUPS = replace(DEFAULT, limits="simdgroups", simdgroup_matrices=True)
"""With matrices of simdgroups, which every Apple silicon GPU has, and no Mac has shown here yet."""

TENSORS = replace(
    SIMDGROUPS, limits="tensors", tensor_operations=True, features=(TENSOR_OPERATIONS,)
)
"""With Metal 4's tensor operations for matmuls of many rows, on GPUs that have units for them."""

TILES = {
    # Twice the rows of W for the same rows of x, which are then read half as often.
    "wide": read_tuning("metal-wide"),
    # Half of the rows, and of the memory: more threadgroups for short prompts, and more of a core.
    "small": read_tuning("metal-small"),
    # Half of the channels a step, so that two threadgroups' tiles take as much memory as one's.
    "shallow": read_tuning("metal-shallow"),
    # Queries by the caches and not by threadgroup memory, of which keys then have the more.
    "direct": read_tuning("metal-direct"),
}
"""Other tiles by what their limits are called after; `gemma4-chat --tune` chooses among them."""


def _tiled(name: str) -> TargetSpec:
    return replace(SIMDGROUPS, limits=f"{SIMDGROUPS.limits}-{name}", tuning=TILES[name])


LIMITS = {spec.limits: spec for spec in (DEFAULT, SIMDGROUPS, *map(_tiled, TILES), TENSORS)}

# --- Library ---

LAUNCHER = tuple(f"metal/{name}.cc" for name in ("objc", "written", "launcher", "device"))
"""What drives Metal where TVM's runtime is not to."""


def with_launcher(platform: Platform) -> Platform:
    """The platform of libraries that hold the launcher."""
    return replace(platform, units=(*platform.units, *LAUNCHER))


MACOS = with_launcher(cpu.native_platform("darwin", "arm64"))


def link(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Link a .dylib for macOS on Apple silicon; see `targets.target.Link`."""
    if spec.device_type is not DEFAULT.device_type:
        raise TargetError(f"a library for `{spec.name}` cannot be linked into a .dylib")
    linker.link_library(executable, output, MACOS, progress=progress)


TARGET = Target(
    LIMITS,
    link,
    lambda: MACOS,
    passes=lambda: (LowerMetalIntrinsics(),),
    source=lambda text, _: write_tensors(text),
)


@tvm_ffi.register_global_func("tvm_callback_metal_compile")
def _written_out(text: str, _target: object) -> tuple[str, str]:
    """What TVM's generator asks for the text of a kernel, and its form."""
    return write_tensors(str(text)), DEFAULT.code_generator

"""CPU of the machine that compiles: LLVM code for numeric tests and for chatting without a GPU."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

from tvm import relax

from gemma4_compile.errors import TargetError
from gemma4_compile.targets import linker
from gemma4_compile.targets.spec import UNLIMITED, DeviceType, TargetSpec

PROCESSORS = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}
"""Oldest processor that runs the library, by `platform.machine()`; elsewhere the plainest."""

DEFAULT = TargetSpec(
    name="cpu",
    profile="default",
    device_type=DeviceType.CPU,
    library_suffix=".so",
    max_threads_per_block=1,
    max_shared_memory_bytes=0,
    max_storage_buffers=UNLIMITED,
    max_binding_bytes=None,
    max_grid_dim=UNLIMITED,
    processor=PROCESSORS.get(platform.machine(), ""),
)

PROFILES = {spec.profile: spec for spec in (DEFAULT,)}

# --- Library ---

OLDEST_GLIBC = "2.28"
"""As old as the wheels of apache-tvm ask for."""
OLDEST_MACOS = "13.0"
"""The first one whose Metal compiler knows MSL 3.0."""

ARCHITECTURES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""zig's name of an architecture by `platform.machine()`."""


def native_platform(system: str, machine: str) -> linker.Platform:
    """Return the platform of an operating system (as in `sys.platform`) and a machine."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None or system not in ("linux", "darwin"):
        raise TargetError(
            f"target `cpu` does not support {machine} on {system}",
            hint="it supports x86-64 and ARM64 on Linux and macOS",
        )
    if system == "linux":
        triple = f"{architecture}-linux-gnu.{OLDEST_GLIBC}"
        link_flags: tuple[str, ...] = (f"-Wl,--version-script={linker.NATIVE / 'exports.map'}",)
    else:
        triple = f"{architecture}-macos.{OLDEST_MACOS}"
        link_flags = (
            # TVM's symbols are found in the process that loads the library.
            *("-undefined", "dynamic_lookup", "-install_name", "@rpath/model"),
            *("-nostdlib++", str(linker.NATIVE / "macos" / "libc++.1.tbd")),
        )
    return linker.Platform(
        name=f"{system}-{architecture}",
        triple=triple,
        units=("kv_state.cc", "kv_functions.cc"),
        compile_flags=("-std=c++17", "-O2", "-g0", "-DNDEBUG", "-fPIC", "-fvisibility=hidden"),
        link_flags=("-shared", "-O2", "-s", *link_flags),
    )


def link(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Link a built executable into a shared library for this machine, with the KV state in it.

    Parameters
    ----------
    executable : built for ``spec.tvm_target()``
    output : the library to write; its directory exists
    spec : the target that it was built for
    progress : is told what takes long (the first build on a machine)

    Raises
    ------
    TargetError
        If zig is missing or fails, or this machine is not supported.
    """
    if spec.name != "cpu":
        raise TargetError(f"a library for `{spec.name}` cannot be linked into a shared library")
    target = native_platform(sys.platform, platform.machine())
    linker.link_library(executable, output, target, progress=progress)

"""CPU of the machine that compiles: LLVM code for numeric tests and for chatting without a GPU."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

from tvm import relax

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker.runtime_objects import NATIVE, OBJECTS, Platform
from gemma4_compile.targets.spec import HOST, UNLIMITED, TargetSpec
from gemma4_compile.targets.target import Target

PROCESSORS = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}
"""Oldest processor that runs the library, by `platform.machine()`; elsewhere the plainest."""

WINDOWS_TRIPLE = "x86_64-w64-windows-gnu"
"""LLVM's name of Windows with MinGW's C library, which zig brings: code for the usual one asks for
Microsoft's."""


def host_triple(system: str) -> str:
    """Return LLVM's triple for an operating system, or "" where TVM's own one is right."""
    return WINDOWS_TRIPLE if system == "win32" else ""


DEFAULT = TargetSpec(
    name="cpu",
    limits="default",
    device_type=DeviceType.CPU,
    code_generator=HOST,
    library_suffix=".so",
    max_threads_per_block=1,
    max_shared_memory_bytes=0,
    max_storage_buffers=UNLIMITED,
    max_binding_bytes=None,
    max_grid_dim=UNLIMITED,
    processor=PROCESSORS.get(platform.machine(), ""),
    host_triple=host_triple(sys.platform),
    joins_sequences=True,
    is_by_machine=True,
)

LIMITS = {spec.limits: spec for spec in (DEFAULT,)}

# --- Library ---

OLDEST_GLIBC = "2.28"
"""As old as the wheels of apache-tvm ask for."""
OLDEST_MACOS = "13.0"
"""The first one whose Metal compiler knows MSL 3.0."""

ARCHITECTURES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""zig's name of an architecture by `platform.machine()`."""
ELF_NAMES = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}
"""The linker's name of an architecture on Linux."""
UNITS = (
    "check_tensors.cc",
    "kv_memory.cc",
    "kv_rotary.cc",
    "kv_sequence.cc",
    "kv_state.cc",
    "kv_functions.cc",
    "kv_rows.cc",
)
COMPILE_FLAGS = ("-std=c++17", "-O2", "-g0", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
SHARED = ("-shared", "-O2", "-s")
_PARTS_OF_UCRT = (
    *("convert", "environment", "filesystem", "heap", "locale", "math", "multibyte"),
    *("private", "runtime", "stdio", "string", "time", "utility"),
)
"""Of Windows' C library."""


def native_platform(system: str, machine: str) -> Platform:
    """Return the platform of an operating system (as in `sys.platform`) and a machine."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is not None and system in ("linux", "darwin"):
        return _linux(architecture) if system == "linux" else _macos(architecture)
    if architecture == "x86_64" and system == "win32":  # apache-tvm has no wheel for Windows on ARM
        return _windows(architecture)
    raise TargetError(
        f"target `cpu` does not support {machine} on {system}",
        hint="it supports x86-64 and ARM64 on Linux and macOS, and x86-64 on Windows: take "
        "`--target webgpu`, whose packages run in a browser",
    )


def this_machine() -> Platform:
    """Return the platform of this machine; TargetError where it is not supported."""
    return native_platform(sys.platform, platform.machine())


def _linux(architecture: str) -> Platform:
    return Platform(
        name=f"linux-{architecture}",
        triple=f"{architecture}-linux-gnu.{OLDEST_GLIBC}",
        units=(*UNITS, "warpgroups.cc"),
        compile_flags=COMPILE_FLAGS,
        library_flags=SHARED,
        linker=("ld.lld",),
        link_flags=(
            *("--error-limit=0", "-O3", "--build-id=none", "--image-base=0", "--gc-sections"),
            *("--eh-frame-hdr", "-s", "-znow", "-m", ELF_NAMES[architecture], "-shared"),
            *("-version-script", str(NATIVE / "exports.map"), "--no-undefined-version"),
            "--as-needed",
        ),
        link_order=(
            OBJECTS,
            *("libc++abi.a", "libc++.a", "libunwind.a"),
            # Of glibc there are only the names of its functions.
            *("libm.so.6", "libc.so.6", "libld.so.2", "libresolv.so.2", "libpthread.so.0"),
            *("libdl.so.2", "librt.so.1", "libutil.so.1"),
            *("libc_nonshared.a", "libcompiler_rt.a"),
        ),
        licences=(
            ("zig's compiler-rt", "LICENSE"),
            ("LLVM's libc++", "lib/libcxx/LICENSE.TXT"),
            ("LLVM's libc++abi", "lib/libcxxabi/LICENSE.TXT"),
            ("LLVM's libunwind", "lib/libunwind/LICENSE.TXT"),
            ("glibc's libc_nonshared", "lib/libc/glibc/LICENSES"),
        ),
    )


def _macos(architecture: str) -> Platform:
    triple = f"{architecture}-macos.{OLDEST_MACOS}"
    # TVM's symbols are found in the process that loads the library.
    flags = (*SHARED, "-nostdlib++", "-undefined", "dynamic_lookup")
    return Platform(
        name=f"darwin-{architecture}",
        triple=triple,
        units=UNITS,
        compile_flags=COMPILE_FLAGS,
        library_flags=flags,
        linker=("c++", "-target", triple),
        link_flags=(
            *(*flags, "-install_name", "@rpath/model"),
            str(NATIVE / "macos" / "libc++.1.tbd"),  # the system's C++ library
            "-rtlib=none",  # zig would build its own again: it comes from the cache
        ),
        link_order=(OBJECTS, "libcompiler_rt.a"),
        licences=(
            ("zig's compiler-rt", "LICENSE"),
            ("LLVM's libc++, its headers", "lib/libcxx/LICENSE.TXT"),
        ),
    )


def _windows(architecture: str) -> Platform:
    triple = f"{architecture}-windows-gnu"
    return Platform(
        name=f"windows-{architecture}",
        triple=triple,
        # TVM's runtime there is Microsoft's C++: the library imports C functions of it, no more.
        units=(*UNITS, "tvm_ffi.def"),
        compile_flags=(
            *(flag for flag in COMPILE_FLAGS if flag != "-fPIC"),  # all code is, there
            *("-include", "mingw.h"),
            *("-DTVM_FFI_DLL=", "-DTVM_FFI_DLL_EXPORT=__declspec(dllexport)"),
        ),
        library_flags=SHARED,
        linker=("lld-link",),
        link_flags=(
            *("-lldmingw", "-nologo", "-errorlimit:0", "-dll", "-machine:x64", "-brepro"),
            *("-noimplib", "-opt:ref", "-alternatename:__image_base__=__ImageBase"),
        ),
        output_option="-out:",
        link_order=(
            *(OBJECTS, "dllcrt2.obj", "libmingw32.lib", "zigc.lib"),
            *("c++abi.lib", "c++.lib", "unwind.lib", "compiler_rt.lib"),
            # Of Windows' own libraries there are only the names of their functions.
            *(f"api-ms-win-crt-{part}-l1-1-0.lib" for part in _PARTS_OF_UCRT),
            "kernel32.lib",
        ),
        licences=(
            ("zig's compiler-rt and libc", "LICENSE"),
            ("LLVM's libc++", "lib/libcxx/LICENSE.TXT"),
            ("LLVM's libc++abi", "lib/libcxxabi/LICENSE.TXT"),
            ("LLVM's libunwind", "lib/libunwind/LICENSE.TXT"),
            ("MinGW-w64's runtime", "lib/libc/mingw/COPYING"),
        ),
    )


def link(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Link a shared library for this machine; see `targets.target.Link`."""
    if spec.is_gpu:
        raise TargetError(f"a library for `{spec.name}` cannot be linked into a shared library")
    linker.link_library(executable, output, this_machine(), progress=progress)


TARGET = Target(LIMITS, link, this_machine)

"""A Metal device without a GPU: kernels compiled as C++ and run thread by thread on the CPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm import relax

from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.targets import TargetSpec, cpu, cuda, metal
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker import runtime_objects, zig
from gemma4_compile.targets.linker.cpp_library import cpp_library

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c++17", "-g0", "-fPIC", "-fno-sanitize=all", "-Wall", "-Werror")
KERNEL_FLAGS = (
    "-std=c++20",  # for template arguments of class types, as Metal has
    "-O1",  # without it kernels run twenty times as long, more than it takes to compile them
    "-mcpu=native",
    # A half is rounded after every operation, also where a CPU could add a product in one.
    *("-Xclang", "-ffloat16-excess-precision=none", "-ffp-contract=off"),
    "-fsanitize=array-bounds,alignment",
    "-fsanitize-minimal-runtime",
    "-Wno-unknown-attributes",  # [[ buffer(0) ]]
    "-Wno-unused",
    "-Wno-bitwise-instead-of-logical",
    "-Wno-user-defined-literals",
    *("-I", str(NATIVE)),
)
HEADERS = (
    *("metal_stdlib", "tensor_cores", "warpgroups", "metal_tensor"),
    "MetalPerformancePrimitives/MetalPerformancePrimitives.h",
)
ARRAY = re.compile(r"^( *)threadgroup (\w+) (\w+)\[(\d+)\];$", re.MULTILINE)

SPEC = replace(metal.DEFAULT, host_triple="", processor="")
"""Kernels for Metal, called by this machine's CPU."""
TENSOR_CORES = replace(
    SPEC,
    tensor_cores=True,
    max_threads_per_block=cuda.DEFAULT.max_threads_per_block,
    max_shared_memory_bytes=cuda.DEFAULT.max_shared_memory_bytes,
)
"""The same with CUDA's kernels where they need what only its warps have."""
WARPGROUPS = replace(
    TENSOR_CORES,
    warpgroups=True,
    max_shared_memory_bytes=cuda.DEFAULT.asked_shared_memory_bytes + 1024,
)
"""And with those of Hopper's warpgroups, whose launches need not ask for shared memory."""


class KernelError(Exception):
    """A kernel that no C++ compiler takes."""


def _zig(arguments: Sequence[str]) -> None:
    zig_cache = str(cache_folder() / "zig")
    environment = {"ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache}
    done = subprocess.run(
        [str(zig.find_zig()), "c++", *arguments],
        env={**environment, **os.environ},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise KernelError("\n".join(done.stderr.splitlines()[:40]))


def _link(objects: Sequence[str], output: Path) -> None:
    """Link a library that shows all its functions."""
    machine = cpu.this_machine()
    hiding = ("-version-script", str(runtime_objects.NATIVE / "exports.map"))
    flags = tuple(flag for flag in machine.link_flags if flag not in hiding)
    target = replace(machine, link_flags=flags)
    linker.link_objects(target, objects, cpp_library(target), output)


def _cached(
    name: str, texts: Sequence[str], make: Callable[[Path, Path], None], suffix: str = ".so"
) -> Path:
    """A file that depends on some texts alone, made once."""
    digest = hashlib.sha256(repr([*texts, FLAGS, KERNEL_FLAGS]).encode()).hexdigest()[:16]
    path = cache_folder() / "metal-emulator" / f"{name}-{digest}{suffix}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch, f"made{suffix}")
            make(Path(scratch), made)
            os.replace(made, path)
    return path


def _own_sources() -> list[str]:
    return [path.read_text() for path in sorted(NATIVE.rglob("*")) if path.is_file()]


def compile_kernels(sources: Mapping[str, str], flags: Sequence[str] = ()) -> Path:
    """A library with a function `emulate_NAME` for every kernel NAME.

    Raises
    ------
    KernelError
        With the compiler's first messages.
    """

    def make(scratch: Path, output: Path) -> None:
        unit = _unit(sources, scratch)
        _zig([*FLAGS, *KERNEL_FLAGS, *flags, "-c", unit, "-o", f"{unit}.o"])
        _link([str(_threadgroup(flags)), f"{unit}.o"], output)

    texts = [f"{name}\0{source}" for name, source in sorted(sources.items())]
    return _cached("kernels", [*_own_sources(), *flags, *texts], make)


def _threadgroup(flags: Sequence[str]) -> Path:
    """What runs the threads of every kernel, as an object: it takes as long as some kernels."""
    unit = str(NATIVE / "threadgroup.cc")

    def make(_scratch: Path, output: Path) -> None:
        _zig([*FLAGS, *KERNEL_FLAGS, *flags, "-c", unit, "-o", str(output)])

    return _cached("threadgroup", [*_own_sources(), *flags], make, ".o")


def compile_text(text: str) -> Path:
    """A library of C++ that needs no header, its halves as those of kernels."""

    def make(scratch: Path, output: Path) -> None:
        unit = scratch / "text.cc"
        unit.write_text(text)
        flags = [one for one in KERNEL_FLAGS if not one.startswith("-fsanitize")]
        _zig([*FLAGS, *flags, "-fno-strict-aliasing", "-c", str(unit), "-o", f"{unit}.o"])
        _link([f"{unit}.o"], output)

    return _cached("text", [text], make)


def check_kernels(sources: Mapping[str, str]) -> None:
    """Compile without a result; KernelError as `compile_kernels`."""
    with tempfile.TemporaryDirectory() as scratch:
        unit = _unit(sources, Path(scratch))
        _zig([*FLAGS, *KERNEL_FLAGS, "-O0", "-c", unit, "-o", f"{unit}.o"])


def _unit(sources: Mapping[str, str], folder: Path) -> str:
    """A C++ file that holds the kernels."""
    parts = [f"#include <{header}>\n" for header in HEADERS]
    for name in sorted(sources):
        body = ARRAY.sub(r"\1THREADGROUP_ARRAY(\2, \3, \4);", sources[name])
        # Inside of `metal`, so that C's functions of the same names are not seen.
        parts.append(f"namespace metal::of_{name} {{\n{body}\n}}\nEMULATE({name})\n")
    path = folder / "kernels.cc"
    path.write_text("".join(parts))
    return str(path)


kernel_libraries: dict[str, str] = {}
"""Paths of what was compiled, by a kernel's text."""

_mistake: Callable[[str], str] | None = None
_flags: tuple[str, ...] = ()


@tvm_ffi.register_global_func("gemma4_test.compile_metal")
def _compile(sources: Mapping[str, str]) -> tuple[str, str]:
    change = _mistake or str
    try:
        texts = {str(name): change(str(text)) for name, text in sources.items()}
        path = str(compile_kernels(texts, _flags))
        kernel_libraries.update(dict.fromkeys(texts.values(), path))
        return path, ""
    except KernelError as error:
        return "", str(error)


@contextmanager
def _with_flags(*flags: str) -> Iterator[None]:
    global _flags
    _flags = flags
    try:
        yield
    finally:
        _flags = ()


def fast_math() -> AbstractContextManager[None]:
    """Compile kernels that are loaded meanwhile as TVM's runtime has Apple's compiler do it."""
    return _with_flags("-ffast-math")


def memory_of_cuda(spec: TargetSpec = cuda.DEFAULT) -> AbstractContextManager[None]:
    """Give kernels that are loaded meanwhile the shared memory of CUDA's thread blocks.

    Every array begins at a multiple of 64 bytes, as TVM asks for there.
    """
    return _with_flags(
        f"-DTHREADGROUP_BYTES={spec.max_shared_memory_bytes}", "-DTHREADGROUP_ALIGNMENT=64"
    )


@contextmanager
def mistake(change: Callable[[str], str]) -> Iterator[None]:
    """Change the source of every kernel that is loaded meanwhile."""
    global _mistake
    _mistake = change
    try:
        yield
    finally:
        _mistake = None


@cache
def install() -> tvm.runtime.Device:
    """Make `metal` a device of this process, and return it."""
    roots = [Path(module.__file__ or "").parent for module in (tvm, tvm_ffi)]
    includes = [runtime_objects.NATIVE / "shims" / "include", runtime_objects.NATIVE / "shims"]
    includes += [root / "include" for root in roots] + [roots[0], NATIVE]

    def make(scratch: Path, output: Path) -> None:
        flags = [*FLAGS, "-O1", "-Wno-unused", *(f"-I{path}" for path in includes)]
        compiled = str(scratch / "device.o")
        _zig([*flags, "-c", str(NATIVE / "device.cc"), "-o", compiled])
        _link([compiled], output)

    path = _cached("device", [*_own_sources(), tvm.__version__, tvm_ffi.__version__], make)
    ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    return tvm.runtime.device("metal", 0)


def link(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Link kernels for Metal with host code for this machine, into a shared library."""
    here = metal.with_launcher(cpu.this_machine())
    linker.link_library(executable, output, here, progress=progress)


@contextmanager
def threads_in_descending_order() -> Iterator[None]:
    """Run the last threadgroup first, and of it the last thread first between two barriers."""
    order = tvm_ffi.get_global_func("gemma4_test.set_descending")
    order(True)
    try:
        yield
    finally:
        order(False)

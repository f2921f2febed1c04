"""CUDA source to PTX, without a GPU: NVRTC of NVIDIA's wheels, or else nvcc of a CUDA toolkit.

The driver turns PTX into machine code when a library is loaded, so one text serves every GPU from
its architecture on.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.errors import TargetError
from gemma4_compile.system.files import scratch_folder
from gemma4_compile.system.nvidia import INSTALL, wheel_folders

REPORTED_LINES = 20
OPTIONS = (
    "--std=c++17",
    # What shaders on other targets get: no denormals, division and roots within two units.
    "--ftz=true",
    "--prec-div=false",
    "--prec-sqrt=false",
)

# TVM's text asks for these two of libcu++, which are in a wheel of their own, for a few names.
STANDARD_HEADERS = {
    "cuda/std/cstdint": """
namespace cuda { namespace std {
using uint8_t = unsigned char; using uint16_t = unsigned short;
using uint32_t = unsigned int; using uint64_t = unsigned long long;
using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long long;
} }
""",
    "cuda/std/type_traits": """
namespace cuda { namespace std {
template <bool B> struct truth { static constexpr bool value = B; };
template <class A, class B> struct is_same : truth<false> {};
template <class A> struct is_same<A, A> : truth<true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class A> struct is_floating_point
    : truth<is_same_v<A, float> || is_same_v<A, double>> {};
template <class A> struct is_signed : truth<(A(-1) < A(0))> {};
template <class A> struct is_unsigned : truth<!is_signed<A>::value> {};
template <class A> struct is_integral : truth<!is_floating_point<A>::value> {};
template <bool B, class A = void> struct enable_if { using type = A; };
template <class A> struct enable_if<false, A> {};
template <bool B, class A, class C> struct conditional { using type = A; };
template <class A, class C> struct conditional<false, A, C> { using type = C; };
} }
""",
}


@dataclass(frozen=True)
class Nvrtc:
    """NVIDIA's compiler as a library.

    Attributes
    ----------
    library : the shared library
    include : folder with `cuda_fp16.h`
    """

    library: Path
    include: Path


@dataclass(frozen=True)
class Nvcc:
    """NVIDIA's compiler as a program; it needs a C++ compiler besides."""

    program: Path


def find_nvrtc() -> Nvrtc | None:
    """NVRTC of the wheels `nvidia-cuda-nvrtc` and `nvidia-cuda-runtime`, if both are installed."""
    libraries = [path for folder in wheel_folders() for path in (folder / "lib").glob("*nvrtc.so*")]
    headers = [folder / "include" for folder in wheel_folders()]
    includes = [folder for folder in headers if (folder / "cuda_fp16.h").is_file()]
    return Nvrtc(libraries[0], includes[0]) if libraries and includes else None


def find_nvcc() -> Nvcc | None:
    """The nvcc on the path, or of the toolkit in $CUDA_HOME, $CUDA_PATH or /usr/local/cuda."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [shutil.which("nvcc"), *(f"{home}/bin/nvcc" for home in homes if home)]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Nvcc(Path(candidate))
    return None


def find_compiler() -> Nvrtc | Nvcc:
    """The compiler to use; TargetError names what to install if there is none."""
    compiler = find_nvrtc() or find_nvcc()
    if compiler is None:
        raise TargetError(
            "no CUDA compiler was found: neither the wheels `nvidia-cuda-nvrtc` and "
            "`nvidia-cuda-runtime` nor `nvcc`",
            hint=f"run `{INSTALL}`; compiling needs no GPU",
        )
    return compiler


def compile_ptx(source: str, architecture: str, compiler: Nvrtc | Nvcc | None = None) -> bytes:
    """Compile CUDA source.

    Parameters
    ----------
    source : kernels, as TVM writes them
    architecture : oldest GPU that shall run them, such as `sm_75`
    compiler : by default what `find_compiler` finds

    Returns
    -------
    bytes
        PTX, a text.

    Raises
    ------
    TargetError
        If there is no compiler, or it refuses the source.
    """
    compiler = compiler or find_compiler()
    options = [f"--gpu-architecture={architecture.replace('sm_', 'compute_')}", *OPTIONS]
    if isinstance(compiler, Nvrtc):
        return _with_nvrtc(source, options, compiler)
    return _with_nvcc(source, options, compiler)


def _with_nvcc(source: str, options: Sequence[str], compiler: Nvcc) -> bytes:
    with scratch_folder(prefix="gemma4-cuda-") as folder:
        Path(folder, "kernels.cu").write_text(source, "utf-8", newline="\n")
        files = ["kernels.cu", "-o", "kernels.ptx"]
        command = [str(compiler.program), "--ptx", "-w", *options, *files]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace"
            )
        except OSError as error:
            raise TargetError(
                f"cannot run {compiler.program}: {error.strerror}",
                hint=f"run `{INSTALL}`",
            ) from error
        if done.returncode != 0:
            raise _refused(f"nvcc ended with exit code {done.returncode}", done.stderr)
        return Path(folder, "kernels.ptx").read_bytes()


def _with_nvrtc(source: str, options: Sequence[str], compiler: Nvrtc) -> bytes:
    try:
        # Its built-in functions are a second library next to it, which it looks up by name.
        for path in compiler.library.parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        nvrtc = ctypes.CDLL(str(compiler.library))
    except OSError as error:
        raise TargetError(
            f"cannot load {compiler.library}: {error}",
            hint=f"run `{INSTALL} --force-reinstall`",
        ) from error
    program = ctypes.c_void_p()
    texts = [text.encode() for text in STANDARD_HEADERS.values()]
    names = [name.encode() for name in STANDARD_HEADERS]
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program),
        source.encode(),
        b"kernels.cu",
        len(texts),
        _strings(texts),
        _strings(names),
    )
    if status:
        raise _refused(f"NVRTC failed with status {status}", "")
    try:
        given = [*options, f"--include-path={compiler.include}"]
        status = nvrtc.nvrtcCompileProgram(
            program, len(given), _strings([option.encode() for option in given])
        )
        if status:
            log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise _refused(f"NVRTC refused the kernels (status {status})", log.decode())
        return _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(values: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(values))(*values)


def _text(program: ctypes.c_void_p, size_of: Callable[..., int], copy: Callable[..., int]) -> bytes:
    size = ctypes.c_size_t()
    status = size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(1, size.value))
    status = status or copy(program, text)
    if status:
        raise _refused(f"NVRTC gave no result (status {status})", "")
    return text.value


def _refused(what: str, log: str) -> TargetError:
    lines = [line for line in log.strip().splitlines() if "error" in line] or [log.strip()]
    return TargetError("\n".join([what, *lines[:REPORTED_LINES]]))

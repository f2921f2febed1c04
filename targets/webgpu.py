"""WebGPU: what a browser allows, and the link of a .wasm for the WebLLM client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import tvm_ffi
from tvm import relax

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import TargetError
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import (
    FEATURE,
    has_subgroup_matrices,
)
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker import webgpu_image
from gemma4_compile.targets.linker.runtime_objects import OBJECTS, Platform
from gemma4_compile.targets.linker.wasm_file import read_interface
from gemma4_compile.targets.spec import INT8, PACKED_PRODUCTS, WORDS, TargetSpec
from gemma4_compile.targets.target import Target
from gemma4_compile.targets.tuning import read_tuning
from gemma4_compile.targets.wgsl_halves import write_halves
from gemma4_compile.targets.wgsl_matrices import write_matrices
from gemma4_compile.targets.wgsl_sums import join_sums

DEFAULT = TargetSpec(
    name="webgpu",
    limits="default",
    device_type=DeviceType.WEBGPU,
    code_generator="webgpu",
    library_suffix=".wasm",
    max_threads_per_block=256,
    max_shared_memory_bytes=32 * 1024,
    max_storage_buffers=10,
    max_binding_bytes=128 * 1024 * 1024,
    max_grid_dim=65_535,
    host_triple="wasm32-unknown-unknown-wasm",
    host_vector_bits=128,
    tuning=read_tuning("webgpu"),
    attributes=(("supports_subgroups", False),),
    source_suffix=".wgsl",
    float16_feature="shader-f16",
    int8_feature=PACKED_PRODUCTS,
    is_static=True,
    gathers_launches=True,
    pads_pictures=True,
    known_answers=True,
)
"""Limits that the WebLLM client asks of every adapter."""

COMPAT = replace(
    DEFAULT,
    limits="compat",
    max_threads_per_block=128,
    max_shared_memory_bytes=16 * 1024,
    tuning=read_tuning("compat"),
)
"""For adapters with fewer threads and less shared memory, in a client that asks for no more.

The stock client refuses adapters with less than 32 KiB.
"""

SUBGROUPS = replace(
    DEFAULT,
    limits="subgroups",
    features=("subgroups",),
    simd_width=32,
    attributes=(("supports_subgroups", True),),
)
"""For adapters with subgroups of 32 threads and more: NVIDIA's, Apple's, most of AMD's.

Kernels exchange values within 32 neighbouring threads, which larger subgroups hold, too; smaller
ones do not, and what they would exchange is undefined.
"""

SMALLER_SUBGROUPS = tuple(
    replace(SUBGROUPS, limits=f"subgroups-{size}", simd_width=size) for size in (16, 8, 4)
)
"""For adapters whose smallest subgroup is smaller: Intel's from 8 threads on, ARM's from 4."""

H200 = replace(
    SUBGROUPS, limits="h200", joins_sums=True, tuning=read_tuning("h200"), activations=INT8
)
"""Tuned on an NVIDIA H200: for large discrete GPUs."""

H200_MATRICES = replace(H200, limits="h200-matrices", features=("subgroups", FEATURE))
"""`h200` with subgroup matrices in prompts and the towers of pictures and float sounds.

They are Dawn's experiment: a device has them only where its browser was started with unsafe WebGPU.
Subgroups have exactly 32 threads here.
"""

LIMITS = {
    spec.limits: spec
    for spec in (DEFAULT, COMPAT, SUBGROUPS, *SMALLER_SUBGROUPS, H200, H200_MATRICES)
}

# --- Border between library and client ---

CLIENT_CALLS = (
    "TVMFFIAnyViewToOwnedAny",
    "TVMFFIDataTypeToString",
    "TVMFFIErrorSetRaisedFromCStr",
    "TVMFFIFunctionCall",
    "TVMFFIFunctionGetGlobal",
    "TVMFFIFunctionSetGlobal",
    "TVMFFIGetTypeInfo",
    "TVMFFIObjectDecRef",
    "TVMFFIObjectIncRef",
    "TVMFFITypeKeyToIndex",
    "TVMFFIWasmFunctionCreate",
    "TVMFFIWasmGetLastError",
    "TVMWasmAllocSpace",
    "TVMWasmFreeSpace",
)
"""C functions that the client calls on the instance, besides `_initialize`."""

DRIVER_CALLS = (
    "gemma4_driver_buffer",
    "gemma4_driver_interface",
    "gemma4_driver_length",
    "gemma4_driver_room",
    "gemma4_driver_state",
    "gemma4_driver_step",
    "gemma4_driver_step_bytes",
    "gemma4_driver_tensor",
    "gemma4_driver_use_count",
    "gemma4_driver_version",
    "gemma4_driver_wrote",
)
"""C functions of `web_driver.cc`, for a browser module that drives the instance from outside."""

CLIENT_OFFERS = frozenset(
    {
        "env.TVMFFIWasmFunctionDeleter",
        "env.TVMFFIWasmSafeCall",
        "env.emscripten_notify_memory_growth",
        "wasi_snapshot_preview1.clock_time_get",
        "wasi_snapshot_preview1.environ_get",
        "wasi_snapshot_preview1.environ_sizes_get",
        "wasi_snapshot_preview1.fd_close",
        "wasi_snapshot_preview1.fd_read",
        "wasi_snapshot_preview1.fd_seek",
        "wasi_snapshot_preview1.fd_write",
        "wasi_snapshot_preview1.proc_exit",
    }
)
"""Functions of the client's WASI layer; an import beyond it fails when a page loads."""

# --- Library ---

WASM = Platform(
    name="wasm32",
    triple="wasm32-wasi",
    units=(
        "wasm_runtime.cc",
        "wasm_support.cc",
        "check_tensors.cc",
        "kv_memory.cc",
        "kv_rotary.cc",
        "kv_sequence.cc",
        "kv_state.cc",
        "kv_functions.cc",
        "kv_page_groups.cc",
        "kv_checkpoint.cc",
        "submit.cc",
        "web_driver.cc",
    ),
    compile_flags=(
        "-mexec-model=reactor",
        "-std=c++17",
        "-Os",
        "-g0",
        "-DNDEBUG",
        "-fignore-exceptions",  # there are none to catch: a throw ends the instance
        "-fvisibility=hidden",
        "-DTVM_FFI_CMAKE_LITTLE_ENDIAN=1",
        "-DTVM_FFI_ALWAYS_LOG_BEFORE_THROW=1",  # else nobody would read the message
        "-D_WASI_EMULATED_SIGNAL",
        "-D_WASI_EMULATED_PROCESS_CLOCKS",
        "-include",
        "single_thread.h",
    ),
    library_flags=("-mexec-model=reactor", "-Os", "-s"),
    linker=("wasm-ld",),
    link_flags=(
        "--error-limit=0",
        "--export-memory",
        "-s",
        "--stack-first",
        *(f"--export={name}" for name in (*CLIENT_CALLS, *DRIVER_CALLS)),
        *("--entry", "_initialize"),
        *("-z", "stack-size=1048576"),
        "--build-id=none",
        # Undefined symbols become imports, so that the check below names all of them.
        "--allow-undefined",
    ),
    link_order=(
        *("crt1-reactor.o", "libc.a", "libzigc.a", "libc++.a", "libc++abi.a"),
        *(OBJECTS, "libcompiler_rt.a"),
    ),
    licences=(
        ("zig's compiler-rt and C library", "LICENSE"),
        ("LLVM's libc++", "lib/libcxx/LICENSE.TXT"),
        ("LLVM's libc++abi", "lib/libcxxabi/LICENSE.TXT"),
        ("musl", "lib/libc/musl/COPYRIGHT"),
        *(
            ("wasi-libc", f"lib/libc/wasi/{name}")
            for name in (
                *("LICENSE", "LICENSE-APACHE-LLVM", "LICENSE-APACHE", "LICENSE-MIT"),
                "libc-bottom-half/cloudlibc/LICENSE",
            )
        ),
    ),
    left_out=(
        # Remote debugging.
        "src/runtime/rpc/rpc_channel.cc",
        "src/runtime/rpc/rpc_endpoint.cc",
        "src/runtime/rpc/rpc_event_impl.cc",
        "src/runtime/rpc/rpc_module.cc",
        # Other models' states: Gemma 4 has its own.
        "src/runtime/vm/attn_backend.cc",
        "src/runtime/vm/paged_kv_cache.cc",
        "src/runtime/vm/rnn_state.cc",
        # Sampling does not sort.
        "src/runtime/extra/contrib/sort/sort.cc",
        # TVM's own tests.
        "3rdparty/tvm-ffi/src/ffi/testing/testing.cc",
    ),
    is_whole=True,
)


def source(text: str, spec: TargetSpec) -> str:
    """The text that the device gets of a kernel that TVM's generator wrote."""
    return write_halves(write_matrices(join_sums(text) if spec.joins_sums else text))


def link(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Link a .wasm that the WebLLM client loads; see `targets.target.Link`."""
    link_with(executable, output, spec, progress, partial(source, spec=spec))


def link_with(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None,
    write: Callable[[str], str],
) -> None:
    """`link` with another text of the calls that WGSL does not know."""
    if spec.device_type is not DEFAULT.device_type:
        raise TargetError(f"a library for `{spec.name}` cannot be linked into a .wasm")

    as_words = spec.float16 == WORDS

    def checked(text: str) -> str:
        if as_words and "enable f16;" in text:
            raise TargetError(
                "a kernel computes in float16, which this library must not need",
                hint="choose another --limits",
            )
        return write(text)

    def pack(module: tvm_ffi.Module, folder: Path) -> Path:
        return webgpu_image.pack_imports(module, folder, checked)

    is_changed = has_subgroup_matrices(spec) or as_words or spec.joins_sums
    linker.link_library(
        executable, output, WASM, check_interface, progress, pack if is_changed else None
    )


def check_interface(library: Path) -> None:
    """Raise TargetError if a .wasm imports or lacks what the client does not offer or calls."""
    interface = read_interface(library)
    for caller, calls in (
        ("the WebLLM client", {"_initialize", "memory", *CLIENT_CALLS}),
        ("the browser module", set(DRIVER_CALLS)),
    ):
        missing = sorted(calls - set(interface.exports))
        if missing:
            raise TargetError(
                f"the library lacks what {caller} calls: {', '.join(missing)}",
                hint="another version of apache-tvm or ziglang may be the cause",
            )
    offending = sorted(set(interface.imports) - CLIENT_OFFERS)
    if offending:
        raise TargetError(
            f"the library imports what the WebLLM client does not offer: {', '.join(offending)}",
            hint="a kernel calls a function that this target does not have; "
            "another version of apache-tvm or ziglang may be the cause",
        )


TARGET = Target(LIMITS, link, lambda: WASM, run_by="gemma4-serve", source=source)

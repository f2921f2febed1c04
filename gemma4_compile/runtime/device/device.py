"""The device of a package: TVM's runtime for it, and tensors on it.

`import tvm` would also load the compiler (150 MB of shared library). The runtime is enough here, so
it is found inside the installed `tvm` package without importing that package. Where a process has
the compiler loaded already, nothing changes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile.device_kinds import NATIVE_KINDS, WITH_LAUNCHER, DeviceKind
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device import metal_launcher
from gemma4_compile.runtime.device.cuda_runtime import LIBRARY as CUDA_RUNTIME
from gemma4_compile.runtime.device.cuda_runtime import CudaError, CudaRuntime
from gemma4_compile.runtime.device.metal_memory import metal_free_bytes
from gemma4_compile.runtime.device.staged_uploads import StagedUploads
from gemma4_compile.system.files import find_libraries_in
from gemma4_compile.system.nvidia import INSTALL, OLDEST_DRIVER, OLDEST_GPU, wheel_folders
from gemma4_compile.system.processor import cpu_name
from gemma4_compile.types import Array

ALIGNMENT_BYTES = 64
"""Alignment that compiled kernels assume of a buffer's address."""

_EXISTS, _COMPUTE_VERSION, _NAME = 0, 4, 5  # TVM's numbers of questions about a device
_METAL_RUNTIME = "tvm_runtime_metal"
_REINSTALL = "reinstall apache-tvm in the version that pyproject.toml names"


def _load(path: Path | str, mode: int = ctypes.RTLD_LOCAL) -> ctypes.CDLL:
    return ctypes.CDLL(str(path), mode)


@cache
def _load_tvm(name: str, mode: int) -> None:
    """Load a library of the `tvm` wheel by its name without prefix and suffix."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError(
            "the TVM runtime is not installed",
            hint="run `pip install apache-tvm` in this environment",
        )
    file = {"darwin": f"lib{name}.dylib", "win32": f"{name}.dll"}.get(sys.platform, f"lib{name}.so")
    path = Path(spec.submodule_search_locations[0], "lib", file)
    if not path.is_file() and name == _METAL_RUNTIME and sys.platform != "darwin":
        raise ArtifactError(
            "packages for `metal` run on Macs with Apple silicon, and this is none",
            hint="take the package to one, or compile with `--target cpu` or `cuda`",
        )
    if not path.is_file():
        raise ArtifactError(f"apache-tvm has no `{file}` for this system", hint=_REINSTALL)
    find_libraries_in(path.parents[2] / "apache_tvm.libs")  # where `import tvm` would look
    try:
        _load(path, mode)
    except OSError as error:
        raise ArtifactError(
            f"cannot load the TVM runtime `{path}`: {error}", hint=_REINSTALL
        ) from error


@cache
def _load_cuda() -> None:
    """The libraries that TVM's CUDA runtime needs: the driver's, and one of CUDA's own."""
    try:
        _load("libcuda.so.1")
    except OSError as error:
        raise ArtifactError(
            f"this package needs an NVIDIA GPU, and its driver was not found ({error})",
            hint=f"install NVIDIA's driver, {OLDEST_DRIVER} or newer, or compile with "
            "`--target cpu`",
        ) from error
    places = [folder / "lib" / CUDA_RUNTIME for folder in wheel_folders()]
    installed: list[Path | str] = [path for path in places if path.is_file()]
    for place in (*installed, CUDA_RUNTIME):
        try:
            _load(place, ctypes.RTLD_GLOBAL)
            return
        except OSError:
            continue
    raise ArtifactError(f"CUDA's runtime `{CUDA_RUNTIME}` was not found", hint=f"run `{INSTALL}`")


def _why_no_gpu() -> str:
    """What CUDA says where it shows no GPU, as of a driver that is too old; "" for nothing."""
    try:
        CudaRuntime().call("cudaGetDeviceCount", ctypes.byref(ctypes.c_int()))
    except CudaError as error:
        return f": {error}; packages for `cuda` need driver {OLDEST_DRIVER} or newer"
    return ""


def _check_gpu(version: str) -> None:
    """ArtifactError for a GPU that is older than any that the kernels' PTX runs on."""
    oldest = ".".join(map(str, OLDEST_GPU))
    try:
        found = tuple(map(int, version.split(".")))
    except ValueError:
        return  # the driver decides when it loads the kernels
    if found < OLDEST_GPU:
        raise ArtifactError(
            f"this computer's GPU has compute capability {version}, and packages for `cuda` need "
            f"{oldest} or newer",
            hint="compile the package with `--target cpu`",
        )


_uploads = StagedUploads(lambda: Device("metal").wait())


@dataclass(frozen=True)
class Device:
    """The first device of a kind.

    Attributes
    ----------
    name : the target that libraries for it were compiled for
    """

    name: str

    @classmethod
    def open(cls, name: str) -> Device:
        """Load the runtime for `name`, and see that there is such a device.

        Raises
        ------
        ArtifactError
            If the runtime, a driver or the device is missing; the hint is what to do.
        """
        if name not in NATIVE_KINDS:
            raise ArtifactError(
                f"packages for `{name[:40]}` do not run here",
                hint=f"this program runs packages for {', '.join(sorted(NATIVE_KINDS))}",
            )
        _load_tvm("tvm_runtime", ctypes.RTLD_GLOBAL)
        device = cls(name)
        if device.is_cpu:
            return device
        if device.kind.has_launcher and metal_launcher.has_metal():
            return device  # a library brings the rest
        if device.kind.has_driver:
            _load_cuda()
        _load_tvm(f"tvm_runtime_{name}", ctypes.RTLD_LOCAL)
        if not _function("runtime.GetDeviceAttr")(device.type, 0, _EXISTS):
            raise ArtifactError(
                f"this computer has no device for packages of target `{name}`"
                + (_why_no_gpu() if device.kind.has_driver else ""),
                hint="compile the package with `--target cpu`",
            )
        if device.kind.has_driver:
            _check_gpu(device.compute_capability)
        return device

    def ask(self, attribute: int) -> object:
        """What TVM knows of a device, by its number of the question; of CPUs that is nothing.

        Of a device whose launcher no library has brought yet, it is nothing either.
        """
        if self.kind.has_launcher and not metal_launcher.is_installed():
            return None
        return _function("runtime.GetDeviceAttr")(self.type, 0, attribute)

    def describe(self) -> str:
        """Name and kind of the device, by which another one is told from it."""
        if self.is_cpu:
            return f"{cpu_name()}, {os.cpu_count()} processors"
        if self.kind.has_launcher:  # whether or not a library has brought it yet
            return "Metal, by the launcher of its libraries"
        return f"{self.ask(_NAME)}, {self.ask(_COMPUTE_VERSION)}"

    @property
    def compute_capability(self) -> str:
        """CUDA's number of the GPU's generation, such as ``9.0``; "" for other devices."""
        return str(self.ask(_COMPUTE_VERSION)) if self.kind.has_driver else ""

    @property
    def kind(self) -> DeviceKind:
        """What can be done on it."""
        return _kind(self.name)

    @property
    def type(self) -> int:
        """DLPack's number."""
        return self.kind.type

    @property
    def is_cpu(self) -> bool:
        """Return whether its memory is the host's."""
        return self.kind.is_host

    def free_bytes(self) -> int | None:
        """Memory that nobody uses; None where the device does not say it."""
        if self.kind.is_of_macs:
            return metal_free_bytes()
        if not self.kind.has_driver:
            return None
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        try:
            CudaRuntime().call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        except CudaError:
            return None
        return free.value

    def empty(self, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
        """A tensor on the device, its values undefined; ArtifactError if there is no room."""
        try:
            tensor = allocate(shape, dtype, self.name)
            if self.kind.has_launcher:
                metal_launcher.check()
            return tensor
        except RuntimeError as error:
            nbytes = int(np.prod(shape)) * tvm_ffi.dtype(dtype).itemsize
            raise ArtifactError(
                f"no room for {nbytes} bytes on the {self.name} device: {error}",
                hint="close what else uses it, or compile with a smaller --quant or --context",
            ) from error

    def copied(self, tensor: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
        """What a tensor on the device holds now, in memory of its own; errors as of `empty`."""
        target = self.empty(tensor.shape, str(tensor.dtype))
        copy(tensor, target)
        return target

    def place(self, array: Array) -> tvm_ffi.Tensor:
        """A tensor with the values of `array`: on the CPU its own memory where kernels can use it.

        That is memory in one piece that may be written to, at an address that kernels assume.
        """
        source = tvm_ffi.from_dlpack(usable(array))
        if self.is_cpu:
            return source
        tensor = self.empty(array.shape, array.dtype.name)
        copy(source, tensor)
        return tensor

    def read(self, tensor: tvm_ffi.Tensor) -> Array:
        """A copy of a tensor's values; waits for the kernels that make them."""
        array = np.empty(tuple(tensor.shape), str(tensor.dtype))
        copy(tensor, tvm_ffi.from_dlpack(array))
        if self.kind.has_launcher:
            metal_launcher.check()  # the copy has waited for what makes them, and for no more
        else:
            self.wait()
        return array

    def submit(self) -> None:
        """Let the device begin what it was given, where that gathers, without a wait."""
        if self.kind.has_launcher:
            metal_launcher.submit()

    def wait(self) -> None:
        """Return when the device has done everything that it was given."""
        if self.kind.has_launcher:
            metal_launcher.wait()
            return
        _function("runtime.Device_StreamSync")(tvm_ffi.device(self.name, 0), 0)
        if self.kind.stages_uploads:
            _uploads.begin_anew()

    def expect_uploads(self, count: int) -> None:
        """Make room for so many uploads, which a library's function makes: see `StagedUploads`."""
        if self.kind.stages_uploads:
            _uploads.expect(count)

    def finish_uploads(self) -> None:
        """Wait for what a library's function has uploaded, where it may be more than that."""
        if self.kind.stages_uploads:
            self.wait()

    def stream(self, handle: int) -> AbstractContextManager[object]:
        """Let this thread launch on another stream for a while."""
        context: AbstractContextManager[object] = tvm_ffi.use_raw_stream(
            tvm_ffi.device(self.name, 0), handle
        )
        return context


def _kind(name: str) -> DeviceKind:
    """What can be done on a device by its name, as the environment has it driven."""
    launched = WITH_LAUNCHER.get(name)
    return launched if launched is not None and metal_launcher.is_chosen() else NATIVE_KINDS[name]


def allocate(shape: Sequence[int], dtype: str, kind: str | int) -> tvm_ffi.Tensor:
    """A tensor on the first device of a kind, by name or number; RuntimeError for no room."""
    where = tvm_ffi.device(kind, 0)
    make = _function("runtime.TVMTensorAllocWithScope")
    return make(tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), where, None)


def usable(array: Array) -> Array:
    """The array itself if kernels can take its memory, or else a copy of it that they can."""
    if (
        array.flags.c_contiguous
        and array.flags.writeable
        and array.dtype.isnative
        and array.ctypes.data % ALIGNMENT_BYTES == 0
    ):
        return array
    memory = np.empty(array.nbytes + ALIGNMENT_BYTES, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT_BYTES
    dtype = array.dtype.newbyteorder("=")
    copy = memory[begin : begin + array.nbytes].view(dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Feed:
    """Memory on a device that takes a few numbers for every call.

    To allocate for each call would be slow, and to free makes a GPU wait for all its work.
    """

    def __init__(self, device: Device, capacity: int, dtype: str) -> None:
        """Make room for `capacity` numbers."""
        self._tensor = device.empty((capacity,), dtype)
        self._dtype = np.dtype(dtype)
        self._host = np.zeros(1, dtype)
        self._source = tvm_ffi.from_dlpack(self._host)
        self._singles: dict[tuple[int, ...], tvm_ffi.Tensor] = {}
        self._held: bytes | None = None  # a single number that the device has

    def write(self, values: npt.ArrayLike) -> tvm_ffi.Tensor:
        """Copy numbers; a tensor of their shape, right until the next call.

        For a single number it is the same tensor in every call, and what is there already is not
        copied again.
        """
        array = np.ascontiguousarray(values, self._dtype)
        if array.size != 1:
            self._held = None
            tensor = view(self._tensor, array.shape)
            if not array.flags.writeable:  # DLPack hands out no other memory
                array = array.copy()
            copy(tvm_ffi.from_dlpack(array), tensor)
            return tensor
        tensor = self._single(array.shape)
        if self._held != array.tobytes():
            self._held = array.tobytes()
            self._host[0] = array.flat[0]
            copy(self._source, self._single((1,)))
        return tensor

    def write_from(self, source: tvm_ffi.Tensor, shape: tuple[int, ...]) -> tvm_ffi.Tensor:
        """Copy a single number that is on the device; the tensor that `write` gives for a shape."""
        self._held = None
        copy(source, self._single((1,)))
        return self._single(shape)

    def _single(self, shape: tuple[int, ...]) -> tvm_ffi.Tensor:
        if shape not in self._singles:
            self._singles[shape] = view(self._tensor, shape)
        return self._singles[shape]


def copy(source: tvm_ffi.Tensor, target: tvm_ffi.Tensor) -> None:
    """Copy a tensor after all work that the device was given before.

    Memory of the host may be overwritten at once: what it held is on its way.
    """
    to, origin = target.device.type, source.device.type
    # Memory of the host that a GPU reads has a type of its own.
    if (
        to in NATIVE_KINDS
        and origin in NATIVE_KINDS
        and (_kind(to).stages_uploads and _kind(origin).is_host)
    ):
        _uploads.expect(1)
    _function("runtime.TVMTensorCopyFromTo")(source, target)


def view(tensor: tvm_ffi.Tensor, shape: Sequence[int], begin: int = 0) -> tvm_ffi.Tensor:
    """The same memory under another shape, from byte `begin` on."""
    return _function("runtime.TVMTensorCreateView")(
        tensor, tvm_ffi.Shape(tuple(shape)), tensor.dtype, begin
    )


def release_pools() -> None:
    """Give back what libraries' calls allocated and freed: TVM keeps it for the next ones."""
    _function("vm.builtin.memory_manager.clear")()


@cache
def _function(name: str) -> tvm_ffi.Function:
    return tvm_ffi.get_global_func(name)

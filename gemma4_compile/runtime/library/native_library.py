"""Loads a compiled model library into this process, with TVM's runtime alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device import metal_launcher
from gemma4_compile.runtime.device.cuda_graph import Copier, Watch
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.graph_storage import GraphStorage, allocating_by
from gemma4_compile.runtime.library.library_file import (
    is_for_another_machine,
    machine_of,
    this_machine,
)
from gemma4_compile.system.files import path_for_tvm
from gemma4_compile.system.regular_files import check_regular

Forward: TypeAlias = "Callable[..., tvm_ffi.Array[Any]]"
"""A step of the model, whose results are of several types: logits, the state, a probe's tensors."""

_POOLED_ALLOCATOR = 2  # of TVM's virtual machine


class NativeLibrary:
    """A loaded model library: its compiled functions, and those of the state linked into it.

    Attributes
    ----------
    copier : what is told of every call, also of those that become a graph; None for nothing
    programmatic : whether kernels of a graph may begin before the last one has ended
    graph_storage : memory of all calls that become a graph
    """

    def __init__(self, path: Path, device: Device | None = None) -> None:
        """Load the library for a device, by default the CPU; ArtifactError if that fails."""
        device = device or Device.open("cpu")
        try:
            check_regular(path.stat())  # to load a pipe would never end
            machine = machine_of(path)
            if is_for_another_machine(machine):
                raise OSError(f"it is for {machine}, and this machine is {this_machine()}")
            if device.kind.has_launcher:
                metal_launcher.install(path)
            self._module = tvm_ffi.load_module(_path_for_tvm(path))
            self._machine = _machine(self._module, device)
        except (OSError, RuntimeError, AttributeError) as error:
            raise ArtifactError(
                f"cannot load the model library `{path}`: {error}",
                hint=f"compile it again with `--target {device.name}` on this kind of machine",
            ) from error
        self._device = device
        self.copier: Copier | None = None
        self.programmatic = False
        self.graph_storage = GraphStorage()

    def copied_by(self, copier: Copier) -> NativeLibrary:
        """The same library in a virtual machine, all of whose calls `copier` is told of."""
        other = self.watched(copier)
        other.copier = copier
        return other

    def watched(
        self, instrument: Callable[..., int], allocate: Callable[..., object] | None = None
    ) -> NativeLibrary:
        """The same library in a virtual machine that reports its calls to `instrument`.

        It is called before and after every call: the function, its name, whether it is before, the
        result, and the arguments.

        `allocate` : what the machine allocates by, as of `allocating_by`
        """
        other = copy.copy(self)
        other._machine = _machine(self._module, self._device, allocate)
        other._machine["set_instrument"](tvm_ffi.convert(instrument))
        return other

    def compiled_function(self, name: str) -> tvm_ffi.Function:
        """A function that was compiled from the model.

        Raises
        ------
        ArtifactError
            If the library has no such function.
        """
        return _find(self._machine, name)

    def metadata(self) -> str:
        """What the library says of itself, as JSON; ArtifactError if it says nothing."""
        return str(self.compiled_function(abi.METADATA)())

    def has(self, name: str) -> bool:
        """Whether `compiled_function` gives one: those of earlier versions have fewer."""
        try:
            self.compiled_function(name)
        except ArtifactError:
            return False
        return True

    def recorded(self) -> tuple[NativeLibrary, Watch]:
        """The same library in a virtual machine whose calls can become graphs, and its watch."""
        watch = Watch(self.copier, self.graph_storage, programmatic=self.programmatic)
        return self.watched(watch, watch.allocate), watch

    def linked_function(self, name: str) -> tvm_ffi.Function:
        """A C++ function that was linked into the library.

        Raises
        ------
        ArtifactError
            If the library has no such function.
        """
        return _find(self._module, name)


def _path_for_tvm(path: Path) -> str:
    try:
        return path_for_tvm(path)
    except OSError as error:
        raise ArtifactError(
            f"cannot load the model library `{path}`: {error.strerror}",
            hint="move the package to a folder whose path has plain letters alone",
        ) from error


def _machine(
    module: tvm_ffi.Module, device: Device, allocate: Callable[..., object] | None = None
) -> tvm_ffi.Module:
    """A virtual machine for the library's functions."""
    machine = module["vm_load_executable"]()
    # Shapes are computed on the CPU, which is last.
    devices = [device.type] if device.is_cpu else [device.type, DeviceType.CPU]
    with allocating_by(allocate):
        machine["vm_initialization"](
            *(value for kind in devices for value in (kind, 0, _POOLED_ALLOCATOR))
        )
    return machine


def _find(module: tvm_ffi.Module, name: str) -> tvm_ffi.Function:
    try:
        return module.get_function(name, query_imports=True)
    except AttributeError as error:
        raise ArtifactError(
            f"the model library has no function `{name}`",
            hint="it was compiled by another version of gemma4-compile: compile it again",
        ) from error

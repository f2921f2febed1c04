"""Loads a compiled model library into this process with TVM's runtime alone.

`import tvm` would also load the compiler (150 MB of shared library). The runtime is enough here, so
it is found inside the installed `tvm` package without importing that package. Where a process has
the compiler loaded already, nothing changes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import tvm_ffi

from gemma4_compile.errors import ArtifactError

_DEVICE_CPU = 1  # DLPack's numbers
_POOLED_ALLOCATOR = 2  # of TVM's virtual machine
_RUNTIME_FILES = {"darwin": "libtvm_runtime.dylib", "win32": "tvm_runtime.dll"}


@cache
def _load_runtime() -> ctypes.CDLL:
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError(
            "the TVM runtime is not installed",
            hint="run `pip install apache-tvm` in this environment",
        )
    name = _RUNTIME_FILES.get(sys.platform, "libtvm_runtime.so")
    path = Path(spec.submodule_search_locations[0], "lib", name)
    try:
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ArtifactError(
            f"cannot load the TVM runtime `{path}`: {error}",
            hint="reinstall apache-tvm in the version that pyproject.toml names",
        ) from error


class NativeLibrary:
    """A loaded model library: its compiled functions, and those of the state linked into it."""

    def __init__(self, path: Path) -> None:
        _load_runtime()
        try:
            self._module = tvm_ffi.load_module(str(path.resolve()))
            self._machine = self._module["vm_load_executable"]()
        except (RuntimeError, AttributeError) as error:
            raise ArtifactError(
                f"cannot load the model library `{path}`: {error}",
                hint="compile the package again with `--target cpu` on this kind of machine",
            ) from error
        self._machine["vm_initialization"](_DEVICE_CPU, 0, _POOLED_ALLOCATOR)

    def compiled_function(self, name: str) -> Any:
        """A function that was compiled from the model.

        Raises
        ------
        ArtifactError
            If the library has no such function.
        """
        return _find(self._machine, name)

    def linked_function(self, name: str) -> Any:
        """A C++ function that was linked into the library.

        Raises
        ------
        ArtifactError
            If the library has no such function.
        """
        return _find(self._module, name)


def _find(module: Any, name: str) -> Any:
    try:
        return module.get_function(name, query_imports=True)
    except AttributeError as error:
        raise ArtifactError(
            f"the model library has no function `{name}`",
            hint="it was compiled by another version of gemma4-compile: compile it again",
        ) from error

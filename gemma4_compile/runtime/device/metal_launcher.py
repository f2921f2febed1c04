"""The launcher for Metal that a library brings, in the place of TVM's runtime (docs/apple.md).

It is a device of TVM's runtime and a loader of kernels as TVM's own is, installed from the first
library of a process that is loaded for it.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.metadata
import logging
import os
from pathlib import Path

import tvm_ffi

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.device.metal_pipelines import KeptPipelines

SWITCH = "GEMMA4_METAL"
"""Environment variable; `own` takes the launcher, `tvm` TVM's runtime."""
LAUNCHES = "GEMMA4_METAL_LAUNCHES"
"""Environment variable: launches of a command buffer."""

_TVM, _OWN = "tvm", "own"
_DEFAULT_LAUNCHES = 64
_MOST_LAUNCHES = 4096
_FRAMEWORK = "/System/Library/Frameworks/Metal.framework/Metal"
_INSTALL = "__tvm_ffi_gemma4_metal_install"
_COUNTS = (
    *("launches", "command buffers", "barriers", "waits", "staged uploads"),
    *("kept pipelines", "new pipelines"),
)
_log = logging.getLogger("gemma4_compile.metal")


def is_chosen() -> bool:
    """Return whether the environment asks for the launcher; UsageError for an unknown word."""
    word = os.environ.get(SWITCH, _TVM)
    if word not in (_TVM, _OWN):
        raise UsageError(
            f"{SWITCH}: expected `{_TVM}` or `{_OWN}`, found `{word[:40]}`",
            hint=f"`{_TVM}` is the default",
        )
    return word == _OWN


def has_metal() -> bool:
    """Return whether the process reaches Metal."""
    for place in (_FRAMEWORK, None):
        try:
            if hasattr(ctypes.CDLL(place), "MTLCreateSystemDefaultDevice"):
                return True
        except (OSError, TypeError):  # Windows takes no None
            continue
    return False


def install(library: Path) -> None:
    """Make the launcher of a model library this process' device for Metal, unless it has one.

    Raises
    ------
    ArtifactError
        If the library has none, or it finds no device or a TVM of another version.
    """
    if is_installed():
        return
    loaded = ctypes.CDLL(str(library.absolute()))  # a name alone is looked for elsewhere
    try:
        address = ctypes.cast(getattr(loaded, _INSTALL), ctypes.c_void_p).value or 0
    except AttributeError as error:
        raise ArtifactError(
            f"`{library}` has no launcher for Metal",
            hint=f"compile it again, or run it without {SWITCH}",
        ) from error
    # The library stays loaded: it is the process' device from now on.
    begin = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=loaded)
    kept, found = _kept_pipelines(library)
    version = importlib.metadata.version("apache-tvm").partition(".post")[0]
    try:
        begin(launches(), version, "" if found is None else str(found))
    except RuntimeError as error:
        raise ArtifactError(
            f"the launcher for Metal cannot be used: {_first_line(error)}",
            hint=f"run without {SWITCH}, by TVM's runtime",
        ) from error
    if kept is not None:
        atexit.register(_save, kept)


def is_installed() -> bool:
    """Return whether this process has it."""
    return tvm_ffi.get_global_func("gemma4_metal.wait", allow_missing=True) is not None


def submit() -> None:
    """Let the GPU begin what it was given, without a wait."""
    _function("submit")()


def wait() -> None:
    """Return when the GPU has done everything; RuntimeError if something failed."""
    _function("wait")()


def check() -> None:
    """RuntimeError if something is known to have failed since this was asked last."""
    _function("check")()


def counts() -> dict[str, int]:
    """What was done since the process began, by name."""
    return dict(zip(_COUNTS, map(int, _function("counts")()), strict=True))


def _kept_pipelines(library: Path) -> tuple[KeptPipelines | None, Path | None]:
    """Where compiled kernels are kept, and those of earlier runs; None where there are none."""
    try:
        kept = KeptPipelines(library)
        return kept, kept.find()
    except OSError as error:
        _log.warning("kernels are compiled anew in every run: %s", error.strerror or error)
        return None, None


def _save(kept: KeptPipelines) -> None:
    try:
        kept.save(_function("save"))
    except OSError as error:
        _log.warning("compiled kernels are not kept: %s", error.strerror or error)


def _function(name: str) -> tvm_ffi.Function:
    return tvm_ffi.get_global_func(f"gemma4_metal.{name}")


def launches() -> int:
    """Launches of a command buffer, by the environment; UsageError for no such number."""
    text = os.environ.get(LAUNCHES, str(_DEFAULT_LAUNCHES))
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_LAUNCHES:
        raise UsageError(f"{LAUNCHES}: expected 1 to {_MOST_LAUNCHES}, found `{text[:40]}`")
    return int(text)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]

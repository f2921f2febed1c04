"""How TVM packs the device modules of a library: texts one after the other, each with its length.

Lengths are uint64, lowest byte first. Readers of the forms: cuda_image.py, webgpu_image.py.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import tvm_ffi

from gemma4_compile.errors import TargetError

LENGTH = struct.Struct("<Q")
BLOB = "imports.bin"


def packed_text(value: bytes) -> bytes:
    """A text with its length before it."""
    return LENGTH.pack(len(value)) + value


def unknown_form(what: str) -> TargetError:
    """The error for packed modules that are not what is expected here."""
    return TargetError(
        f"TVM packed the kernels in an unknown form: {what}",
        hint="reinstall apache-tvm in the version that pyproject.toml names",
    )


def pack(module: tvm_ffi.Module) -> bytes:
    """The packed modules that a host module imports."""
    packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
    return bytes(np.from_dlpack(packed).tobytes())


def write_source(blob: bytes, path: Path, template: str) -> Path:
    """Write packed modules, and next to them the source that defines them by a symbol.

    Parameters
    ----------
    path : of the source; it is compiled with its folder as working directory
    template : of its text, with the fields `symbol`, `size`, `blob` and `digest`
    """
    (path.parent / BLOB).write_bytes(blob)
    text = template.format(
        symbol=tvm_ffi.get_global_func("runtime.ModuleImportsBlobName")(),
        size=len(blob),
        blob=BLOB,
        digest=hashlib.sha256(blob).hexdigest(),  # zig's cache knows a file by its own text only
    )
    path.write_text(text, "utf-8", newline="\n")
    return path

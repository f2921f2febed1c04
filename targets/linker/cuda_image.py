"""Puts compiled kernels into what a model library carries of its device code.

On a machine without CUDA's driver TVM packs the source of kernels, which only a process with a
compiler could load. The packed form is documented where it is read
(`tvm_ffi/src/ffi/extra/library_module.cc`): sizes and texts one after the other, all lengths as
uint64 in the machine's order.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm_ffi

from gemma4_compile.errors import TargetError

KIND = b"cuda"
SOURCE, COMPILED = b"cuda", b"ptx"
BLOB = "imports.bin"
ASSEMBLY = """\
# sha256 of {blob}: {digest}
    .section .rodata
    .balign 16
    .globl {symbol}
    .type {symbol}, @object
    .size {symbol}, {size}
{symbol}:
    .incbin "{blob}"
    .section .note.GNU-stack,"",@progbits
"""
_LENGTH = struct.Struct("<Q")


def pack_imports(
    module: tvm_ffi.Module, folder: Path, compile_source: Callable[[str], bytes]
) -> Path:
    """Write an assembly file that defines the library's packed modules.

    Parameters
    ----------
    module : host module with the device modules that it imports
    folder : where the files go; the file is assembled with this as working directory
    compile_source : from a module's source to its PTX

    Raises
    ------
    TargetError
        If the device code is not packed the way it is read here, or does not compile.
    """
    packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
    blob = np.from_dlpack(packed).tobytes()
    for device in module._collect_from_import_tree(lambda found: found.kind == KIND.decode()):
        source = device.inspect_source()
        blob = with_compiled(blob, source, compile_source(source))
    (folder / BLOB).write_bytes(blob)
    path = folder / "imports.s"
    text = ASSEMBLY.format(
        symbol=tvm_ffi.get_global_func("runtime.ModuleImportsBlobName")(),
        size=len(blob),
        blob=BLOB,
        digest=hashlib.sha256(blob).hexdigest(),  # zig's cache knows a file by its own text only
    )
    path.write_text(text, "utf-8")
    return path


def with_compiled(blob: bytes, source: str, compiled: bytes) -> bytes:
    """Packed modules in which one device module holds PTX instead of its source.

    A module is packed as its kind and its own bytes: format, description of the kernels, data.

    Raises
    ------
    TargetError
        If there is not exactly one such module.
    """
    data = _text(source.encode())
    end = blob.find(data) + len(data)
    begin = blob.rfind(_text(SOURCE), 0, end)  # of the module's own bytes
    kind = _text(KIND) + _LENGTH.pack(end - begin)
    if blob.count(data) != 1 or begin < len(kind) or blob[begin - len(kind) : begin] != kind:
        raise _unknown("kind, format and data are not where they should be")
    kernels = blob[begin + len(_text(SOURCE)) : end - len(data)]
    # The driver reads up to a zero.
    own = _text(COMPILED) + kernels + _text(compiled.rstrip(b"\0") + b"\0")
    modules = blob[: begin - _LENGTH.size] + _text(own) + blob[end:]
    return _text(modules[_LENGTH.size :])


def _text(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _unknown(what: str) -> TargetError:
    return TargetError(
        f"TVM packed the kernels in an unknown form: {what}",
        hint="reinstall apache-tvm in the version that pyproject.toml names",
    )

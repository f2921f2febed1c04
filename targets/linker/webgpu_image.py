"""Puts changed WGSL into what a model library carries of its device code.

TVM packs the text of kernels as its generator wrote it. The packed form is documented where it is
read (`tvm/web/emcc/webgpu_runtime.cc`): all lengths as uint64, lowest byte first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm_ffi

from gemma4_compile.errors import TargetError

KIND = b"webgpu"
BEGINNING = b"//----"  # of a kernel's text
BLOB = "imports.bin"
SOURCE = """\
// sha256 of {blob}: {digest}
int TVMFFIEnvModRegisterSystemLibSymbol(const char* name, void* symbol);
_Alignas(16) const unsigned char {symbol}[] = {{
#embed "{blob}"
}};
__attribute__((constructor)) static void register_imports(void) {{
  TVMFFIEnvModRegisterSystemLibSymbol("{symbol}", (void*){symbol});
}}
"""
_LENGTH = struct.Struct("<Q")


def pack_imports(module: tvm_ffi.Module, folder: Path, write: Callable[[str], str]) -> Path:
    """Write a C file that defines and registers the library's packed modules.

    Parameters
    ----------
    module : host module with the device module that it imports
    folder : where the files go; the file is compiled with this as working directory
    write : from a kernel's text to the device's

    Raises
    ------
    TargetError
        If the device code is not packed the way it is read here.
    """
    packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
    blob = with_texts(np.from_dlpack(packed).tobytes(), write)
    (folder / BLOB).write_bytes(blob)
    path = folder / "imports.c"
    text = SOURCE.format(
        symbol=tvm_ffi.get_global_func("runtime.ModuleImportsBlobName")(),
        blob=BLOB,
        digest=hashlib.sha256(blob).hexdigest(),  # zig's cache knows a file by its own text only
    )
    path.write_text(text, "utf-8")
    return path


def with_texts(blob: bytes, write: Callable[[str], str]) -> bytes:
    """Packed modules in which `write` has changed the text of every kernel.

    A module is packed as its kind and its own bytes; those of WebGPU end with the kernels' names
    and texts.

    Raises
    ------
    TargetError
        If there is not exactly one such module with a text at its end.
    """
    kind = _text(KIND)
    begin = blob.find(kind) + len(kind)
    if blob.count(kind) != 1:
        raise _unknown(f"{blob.count(kind)} modules of WebGPU")
    (size,) = _LENGTH.unpack_from(blob, begin)
    end = begin + _LENGTH.size + size
    parts, at = [], begin + _LENGTH.size
    last = at
    while (found := blob.find(BEGINNING, at, end)) >= 0:
        (length,) = _LENGTH.unpack_from(blob, found - _LENGTH.size)
        at = found + length
        if at > end:
            raise _unknown("a text without its length before it")
        text = write(blob[found:at].decode())
        parts += [blob[last : found - _LENGTH.size], _text(text.encode())]
        last = at
    if last != end or not parts:
        raise _unknown("the kernels' texts are not where they should be")
    modules = blob[_LENGTH.size : begin] + _text(b"".join(parts)) + blob[end:]
    return _text(modules)


def _text(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _unknown(what: str) -> TargetError:
    return TargetError(
        f"TVM packed the kernels in an unknown form: {what}",
        hint="reinstall apache-tvm in the version that pyproject.toml names",
    )

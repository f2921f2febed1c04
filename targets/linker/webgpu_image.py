"""Puts changed WGSL into what a model library carries of its device code.

TVM packs the text of kernels as its generator wrote it. The packed form is documented where it is
read (`tvm/web/emcc/webgpu_runtime.cc`): all lengths as uint64, lowest byte first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tvm_ffi

from gemma4_compile.targets.linker.packed_modules import (
    LENGTH,
    pack,
    packed_text,
    unknown_form,
    write_source,
)

KIND = b"webgpu"
BEGINNING = b"//----"  # of a kernel's text
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
    blob = with_texts(pack(module), write)
    return write_source(blob, folder / "imports.c", SOURCE)


def with_texts(blob: bytes, write: Callable[[str], str]) -> bytes:
    """Packed modules in which `write` has changed the text of every kernel.

    A module is packed as its kind and its own bytes; those of WebGPU end with the kernels' names
    and texts.

    Raises
    ------
    TargetError
        If there is not exactly one such module with a text at its end.
    """
    kind = packed_text(KIND)
    begin = blob.find(kind) + len(kind)
    if blob.count(kind) != 1:
        raise unknown_form(f"{blob.count(kind)} modules of WebGPU")
    (size,) = LENGTH.unpack_from(blob, begin)
    end = begin + LENGTH.size + size
    parts, at = [], begin + LENGTH.size
    last = at
    while (found := blob.find(BEGINNING, at, end)) >= 0:
        (length,) = LENGTH.unpack_from(blob, found - LENGTH.size)
        at = found + length
        if at > end:
            raise unknown_form("a text without its length before it")
        text = write(blob[found:at].decode())
        parts += [blob[last : found - LENGTH.size], packed_text(text.encode())]
        last = at
    if last != end or not parts:
        raise unknown_form("the kernels' texts are not where they should be")
    modules = blob[LENGTH.size : begin] + packed_text(b"".join(parts)) + blob[end:]
    return packed_text(modules)

"""Puts compiled kernels into what a model library carries of its device code.

On a machine without CUDA's driver TVM packs the source of kernels, which only a process with a
compiler could load. The packed form is documented where it is read
(`tvm_ffi/src/ffi/extra/library_module.cc`): sizes and texts one after the other, all lengths as
uint64 in the machine's order.
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

KIND = b"cuda"
SOURCE, COMPILED = b"cuda", b"ptx"
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


def pack_imports(
    module: tvm_ffi.Module, folder: Path, compile_source: Callable[[str], bytes]
) -> Path:
    """Write an assembly file that defines the library's packed modules.

    Parameters
    ----------
    module : host module with the device modules that it imports
    folder : where the files go; the file is assembled with this as working directory
    compile_source : from a module's source to what the driver loads

    Raises
    ------
    TargetError
        If the device code is not packed the way it is read here, or does not compile.
    """
    blob = pack(module)
    for device in module._collect_from_import_tree(lambda found: found.kind == KIND.decode()):
        source = device.inspect_source()
        blob = with_compiled(blob, source, compile_source(source))
    return write_source(blob, folder / "imports.s", ASSEMBLY)


def with_compiled(blob: bytes, source: str, compiled: bytes) -> bytes:
    """Packed modules in which one device module holds its compiled form instead of its source.

    A module is packed as its kind and its own bytes: format, description of the kernels, data.

    Raises
    ------
    TargetError
        If there is not exactly one such module.
    """
    data = packed_text(source.encode())
    end = blob.find(data) + len(data)
    begin = blob.rfind(packed_text(SOURCE), 0, end)  # of the module's own bytes
    kind = packed_text(KIND) + LENGTH.pack(end - begin)
    if blob.count(data) != 1 or begin < len(kind) or blob[begin - len(kind) : begin] != kind:
        raise unknown_form("kind, format and data are not where they should be")
    kernels = blob[begin + len(packed_text(SOURCE)) : end - len(data)]
    own = packed_text(COMPILED) + kernels + packed_text(compiled)
    modules = blob[: begin - LENGTH.size] + packed_text(own) + blob[end:]
    return packed_text(modules[LENGTH.size :])

"""Packages of several libraries, made of one for the CPU: its library under other names."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.package.libraries import LibraryRecord

ELF_X86 = b"\x7fELF\x02\x01\x01" + bytes(11) + (62).to_bytes(2, "little") + bytes(64)
ELF_ARM = b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little") + bytes(64)
MACH_O_ARM = b"\xcf\xfa\xed\xfe" + 0x0100000C.to_bytes(4, "little") + bytes(64)
WINDOWS = b"MZ" + bytes(64)  # of MS-DOS alone: without the header that names a processor
WINDOWS_X86 = b"MZ" + bytes(58) + (64).to_bytes(4, "little") + b"PE\0\0" + b"\x64\x86" + bytes(64)
WINDOWS_ARM = b"MZ" + bytes(58) + (64).to_bytes(4, "little") + b"PE\0\0" + b"\x64\xaa" + bytes(64)
WASM = b"\0asm" + bytes(64)


def record(
    name: str, target: str, file: str | None = None, activations: str = "float"
) -> LibraryRecord:
    """A library's entry: its file is named for it."""
    suffix = {"webgpu": ".wasm", "metal": ".dylib"}.get(target, ".so")
    file = file or f"model-{name}{suffix}"
    return LibraryRecord(file, name, target, target, "default", activations, None, {})


def with_libraries(
    package: Path, folder: Path, contents: Sequence[tuple[LibraryRecord, bytes | None]]
) -> Path:
    """A copy of a package with these libraries, the main one first.

    Their files hold the bytes that are given, or with None the package's own library.
    """
    shutil.copytree(package, folder)
    path = folder / abi.PROVENANCE_FILE
    values = json.loads(path.read_text())
    own = (folder / values["library"]).read_bytes()
    values["files"].pop(values["library"])
    (folder / values["library"]).unlink()
    for one, content in contents:
        data = own if content is None else content
        (folder / one.file).write_bytes(data)
        listed = {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        values["files"][one.file] = listed
    records = [one for one, _ in contents]
    values["library"] = records[0].file
    values["libraries"] = [one.to_json() for one in records]
    path.write_text(json.dumps(values))
    return folder

"""The kind of machine that a native library's file is for, from the file's own header."""

from __future__ import annotations

import platform
import struct
import sys
from pathlib import Path
from typing import BinaryIO

from gemma4_compile.system.regular_files import open_regular

_HEADER_BYTES = 64
_ELF, _ELF_LITTLE = b"\x7fELF", 1
_MACH_O = b"\xcf\xfa\xed\xfe"  # of 64 bits, in the order of all that is built today
_MZ, _PE = b"MZ", b"PE\0\0"
_ELF_PROCESSORS = {62: "x86_64", 183: "arm64"}
_MACH_O_PROCESSORS = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_PE_PROCESSORS = {0x8664: "x86_64", 0xAA64: "arm64"}
_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_SAME_PROCESSOR = {"amd64": "x86_64", "aarch64": "arm64"}


def machine_of(path: Path) -> str | None:
    """System and processor that a library is for, as `this_machine` has them.

    None for what is no library of a known kind, of which loading says more. OSError if it cannot be
    read.
    """
    with open_regular(path) as file:
        header = file.read(_HEADER_BYTES)
        second = _second_header(file, header)
    if len(header) < _HEADER_BYTES:
        return None
    if header.startswith(_ELF) and header[5] == _ELF_LITTLE:
        (number,) = struct.unpack_from("<H", header, 18)
        return _named("Linux", _ELF_PROCESSORS.get(number))
    if header.startswith(_MACH_O):
        (number,) = struct.unpack_from("<I", header, 4)
        return _named("macOS", _MACH_O_PROCESSORS.get(number))
    if header.startswith(_MZ):
        (number,) = struct.unpack_from("<H", second, len(_PE))
        return _named("Windows", _PE_PROCESSORS.get(number))
    return None


def this_machine() -> str:
    """System and processor that this process runs on, such as `Linux x86_64`."""
    processor = platform.machine().lower()
    return f"{_SYSTEMS.get(sys.platform, sys.platform)} {_SAME_PROCESSOR.get(processor, processor)}"


def is_for_another_machine(found: str | None) -> bool:
    """Return whether `machine_of` found a system or a processor that this machine has not."""
    return found is not None and not this_machine().startswith(found)


def _second_header(file: BinaryIO, header: bytes) -> bytes:
    """The header that a file of Windows has after the one of MS-DOS, which ends with its place."""
    if header.startswith(_MZ) and len(header) == _HEADER_BYTES:
        file.seek(int.from_bytes(header[-4:], "little"))
        found = file.read(len(_PE) + 2)
        if found.startswith(_PE) and len(found) == len(_PE) + 2:
            return found
    return _PE + b"\0\0"


def _named(system: str, processor: str | None) -> str:
    return system if processor is None else f"{system} {processor}"

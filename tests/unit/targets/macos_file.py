"""What macOS reads of a dynamic library before it runs any of its code."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import lief

FLAT_LOOKUP = -2  # a bound symbol's library: whichever is loaded has it
WEAK = -3
SIGNATURE, CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02
SHA256 = 2

lief.logging.disable()


@dataclass(frozen=True)
class MacosLibrary:
    """Attributes: `imports` are bound symbols by the library that they are asked from."""

    cpu: str
    kind: str
    oldest_macos: tuple[int, ...]
    name: str
    exports: frozenset[str]
    imports: dict[str, frozenset[str]]


def read_macos_library(path: Path) -> MacosLibrary:
    """Read the only architecture of a file."""
    fat = lief.MachO.parse(str(path))
    assert fat is not None
    assert fat.size == 1
    binary = fat.at(0)
    assert binary is not None
    assert binary.build_version is not None
    libraries = [str(library.name) for library in binary.libraries]
    name, *others = libraries
    imports: dict[str, set[str]] = {}
    for binding in binary.bindings:
        ordinal = binding.library_ordinal
        # Weak symbols are defined in the file itself, and may give way to another's definition.
        if binding.has_symbol and "WEAK" not in str(getattr(binding, "binding_class", "")):
            key = "" if ordinal == FLAT_LOOKUP else others[ordinal - 1]
            assert binding.symbol is not None
            imports.setdefault(key, set()).add(str(binding.symbol.name))
    return MacosLibrary(
        cpu=str(binary.header.cpu_type).rsplit(".", 1)[-1],
        kind=str(binary.header.file_type).rsplit(".", 1)[-1],
        oldest_macos=tuple(binary.build_version.minos),
        name=name,
        exports=frozenset(str(symbol.name) for symbol in binary.exported_symbols),
        imports={key: frozenset(names) for key, names in imports.items()},
    )


def unsigned_pages(path: Path) -> list[int]:
    """Pages whose hash differs from the signed one; Apple silicon ends a process that loads one.

    Raises
    ------
    ValueError
        If there is no signature over sha256 hashes.
    """
    content = path.read_bytes()
    fat = lief.MachO.parse(str(path))
    assert fat is not None
    binary = fat.at(0)
    assert binary is not None
    assert binary.code_signature is not None
    begin = binary.code_signature.data_offset
    magic, _, count = struct.unpack_from(">3I", content, begin)
    if magic != SIGNATURE:
        raise ValueError("no signature")
    for index in range(count):
        _, offset = struct.unpack_from(">2I", content, begin + 12 + 8 * index)
        at = begin + offset
        if struct.unpack_from(">I", content, at)[0] == CODE_DIRECTORY:
            break
    else:
        raise ValueError("no code directory")
    hashes, _, _, slots, limit = struct.unpack_from(">5I", content, at + 16)
    size, kind, _, page = struct.unpack_from("4B", content, at + 36)
    if kind != SHA256:
        raise ValueError(f"hashes of kind {kind}")
    wrong = []
    for slot in range(slots):
        signed = content[at + hashes + slot * size :][:size]
        text = content[slot << page : min(limit, (slot + 1) << page)]
        if hashlib.sha256(text).digest() != signed:
            wrong.append(slot)
    assert limit <= begin < limit + (1 << page), "the signature covers the file up to itself"
    return wrong

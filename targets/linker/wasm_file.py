"""Reads what a .wasm file imports and exports, to check a library before it is shipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.errors import TargetError

MAGIC = b"\0asm\x01\0\0\0"
IMPORT_SECTION = 2
EXPORT_SECTION = 7
FUNCTION, TABLE, MEMORY, GLOBAL = range(4)


@dataclass(frozen=True)
class WasmInterface:
    """Names at a module's border: imports as ``module.name``, and exports."""

    imports: tuple[str, ...]
    exports: tuple[str, ...]


def read_interface(path: Path) -> WasmInterface:
    """Return the imports and exports of a .wasm file; TargetError if it is none or is damaged."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise TargetError(f"{path} is not a WebAssembly file")
    imports: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    try:
        for section, content in _sections(data):
            if section == IMPORT_SECTION:
                imports = tuple(_imports(_Reader(content)))
            elif section == EXPORT_SECTION:
                exports = tuple(_exports(_Reader(content)))
    except (IndexError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} is a damaged WebAssembly file") from error
    return WasmInterface(imports, exports)


class _Reader:
    """A position in the bytes of a section."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1]

    def number(self) -> int:
        """Read an unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, size: int) -> bytes:
        if self.position + size > len(self.data):
            raise IndexError("section ends early")
        self.position += size
        return self.data[self.position - size : self.position]

    def name(self) -> str:
        return self.take(self.number()).decode()

    def limits(self) -> None:
        has_maximum = self.byte() & 1
        self.number()
        if has_maximum:
            self.number()


def _sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    reader = _Reader(data)
    reader.position = len(MAGIC)
    while reader.position < len(data):
        section = reader.byte()
        yield section, reader.take(reader.number())


def _imports(reader: _Reader) -> Iterator[str]:
    for _ in range(reader.number()):
        yield f"{reader.name()}.{reader.name()}"
        kind = reader.byte()
        if kind == FUNCTION:
            reader.number()
        elif kind == TABLE:
            reader.byte()
            reader.limits()
        elif kind == MEMORY:
            reader.limits()
        else:  # a global: its type and whether it can change
            reader.take(2)


def _exports(reader: _Reader) -> Iterator[str]:
    for _ in range(reader.number()):
        yield reader.name()
        reader.byte()
        reader.number()

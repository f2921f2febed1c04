from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker.wasm_file import MAGIC, read_interface


def number(value: int) -> bytes:
    """Encode an unsigned LEB128 number."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def name(text: str) -> bytes:
    return number(len(text)) + text.encode()


def section(kind: int, items: list[bytes]) -> bytes:
    content = number(len(items)) + b"".join(items)
    return bytes([kind]) + number(len(content)) + content


IMPORTS = section(
    2,
    [
        name("env") + name("call") + b"\0" + number(300),
        name("env") + name("table") + b"\1\x70\1" + number(1) + number(500),
        name("env") + name("memory") + b"\2\0" + number(200),
        name("env") + name("global") + b"\3\x7f\0",
        name("wasi") + name("fd_write") + b"\0" + number(0),
    ],
)
EXPORTS = section(
    7, [name("memory") + b"\2" + number(0), name("n" * 200) + b"\0" + number(1_000_000)]
)


def test_reads_imports_of_every_kind_and_exports(tmp_path: Path) -> None:
    path = tmp_path / "library.wasm"
    path.write_bytes(MAGIC + section(0, []) + IMPORTS + EXPORTS)
    interface = read_interface(path)
    assert interface.imports == (
        "env.call",
        "env.table",
        "env.memory",
        "env.global",
        "wasi.fd_write",
    )
    assert interface.exports == ("memory", "n" * 200)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", MAGIC[:-1]])
def test_refuses_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "library.wasm"
    path.write_bytes(content)
    with pytest.raises(TargetError, match="not a WebAssembly file"):
        read_interface(path)


def test_refuses_a_file_cut_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "library.wasm"
    whole = MAGIC + IMPORTS
    for size in range(len(MAGIC) + 1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(TargetError, match="damaged"):
            read_interface(path)

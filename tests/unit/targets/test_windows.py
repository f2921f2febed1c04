"""The library for Windows: linked here, and held to what TVM's DLL there has.

zig's C++ library for Windows takes minutes to build, and is left out here: names that it has stay
open (`-force:unresolved`), which nothing that is looked at depends on.
"""

from __future__ import annotations

import ctypes
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from tvm import relax

from gemma4_compile.runtime.library.library_file import machine_of
from gemma4_compile.targets import cpu
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker.runtime_objects import NATIVE, OBJECTS, runtime_objects
from tests.unit.targets.kv_library import CacheOfLayer, RotaryKind, build
from tests.unit.targets.other_wheels import wheel
from tests.unit.targets.test_cpu import Parallel

lief: Any = pytest.importorskip("lief", reason="lief is not installed (make setup)")

pytestmark = pytest.mark.package  # compiles the KV state

WINDOWS = cpu.native_platform("win32", "AMD64")
SPEC = replace(
    cpu.DEFAULT,
    processor=cpu.PROCESSORS["AMD64"],
    host_triple=cpu.host_triple("win32"),
)
DLL = "tvm_ffi.dll"


def listed() -> set[str]:
    """The functions of TVM that a library may import."""
    lines = (NATIVE / "tvm_ffi.def").read_text("utf-8").splitlines()
    assert f"LIBRARY {DLL}" in lines
    return set(lines[lines.index("EXPORTS") + 1 :])


def symbols(content: bytes) -> Iterator[tuple[str, bool]]:
    """The symbols of an object (COFF), and whether each is another one's."""
    place, count = struct.unpack_from("<II", content, 8)
    strings = place + 18 * count
    skipped = 0
    for index in range(count):
        entry = content[place + 18 * index :][:18]
        if skipped:
            skipped -= 1
            continue
        _, offset, value, section, _, _, skipped = struct.unpack("<IIIhHBB", entry)
        name = entry[:8]
        if name[:4] == bytes(4):
            name = content[strings + offset : content.index(0, strings + offset)]
        yield name.rstrip(b"\0").decode(), section == 0 and value == 0


def linked(executable: relax.VMExecutable, output: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library without zig's C++ library, read."""
    target = replace(
        WINDOWS,
        link_order=(OBJECTS,),
        link_flags=(*WINDOWS.link_flags, "-force:unresolved", "-noentry"),
    )
    monkeypatch.setattr(linker, "cpp_library", lambda target, progress: {})
    linker.link_library(executable, output, target)
    return lief.PE.parse(str(output))


def test_it_shows_what_tvm_looks_up_and_imports_what_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    executable = build(SPEC, (CacheOfLayer(1, 4),), (RotaryKind(4, 2, 1e4),))
    library = linked(executable, path, monkeypatch)
    assert machine_of(path) == "Windows x86_64"
    assert library.header.has_characteristic(lief.PE.Header.CHARACTERISTICS.DLL)
    exports = {entry.name for entry in library.get_export().entries}
    assert {"__tvm_ffi__library_bin", "__tvm_ffi_gemma4_kv_create"} <= exports
    assert [name for name in exports if not name.startswith(("__tvm_ffi_", "__TVM"))] == []
    imports = {module.name: {entry.name for entry in module.entries} for module in library.imports}
    assert imports == {DLL: listed()}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.so"]


def test_pointers_that_tvm_sets_for_parallel_kernels_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = relax.build(Parallel, target=SPEC.tvm_target())
    library = linked(executable, tmp_path / "model.so", monkeypatch)
    assert "__TVMBackendParallelLaunch" in {e.name for e in library.get_export().entries}


def test_nothing_of_tvms_cpp_is_left_open() -> None:
    """The DLL is Microsoft's C++: a class or function of it has another name and another form."""
    defined: set[str] = set()
    asked: set[str] = set()
    for path in runtime_objects(WINDOWS):
        if path.read_bytes().startswith(b"!<arch>"):
            continue  # the list
        for name, is_asked in symbols(path.read_bytes()):
            (asked if is_asked else defined).add(name)
    of_tvm = {name for name in asked - defined if "tvm" in name.lower()}
    assert of_tvm
    assert of_tvm <= listed()


def test_the_listed_functions_are_in_tvms_library_here_and_in_the_wheel_for_windows(
    tmp_path: Path,
) -> None:
    here = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    assert [name for name in listed() if not hasattr(here, name)] == []
    with zipfile.ZipFile(wheel("apache-tvm-ffi", ("win_amd64",), "win_amd64")) as archive:
        library = lief.PE.parse(archive.extract(f"tvm_ffi/lib/{DLL}", tmp_path))
    assert listed() <= {entry.name for entry in library.get_export().entries}

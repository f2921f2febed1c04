"""The library for macOS that every machine links: structure, and symbols that exist on a Mac."""

import zipfile
from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets import TargetSpec, link, metal, target_spec
from tests.unit.targets.kv_library import DOUBLE, CacheOfLayer, RotaryKind, build
from tests.unit.targets.macos_file import MacosLibrary, read_macos_library, unsigned_pages
from tests.unit.targets.other_wheels import wheel

SPEC = target_spec("metal")
LIBCPP, LIBSYSTEM = "/usr/lib/libc++.1.dylib", "/usr/lib/libSystem.B.dylib"
TVM = ""  # found in the process
# The C library, by the headers that declare them; the unwinder and the loader's own.
OF_LIBSYSTEM = {
    *("_bzero", "_cos", "_free", "_malloc", "_memcpy", "_memmove", "_memset", "_pow", "_sin"),
    *("_strlen", "___cxa_atexit", "__Unwind_Resume", "dyld_stub_binder"),
    "___sincos_stret",  # since macOS 10.9: sine and cosine of one angle
    # Of the launcher, which looks everything else up when it is asked for.
    *("_calloc", "_dlopen", "_dlsym", "_memchr", "_memcmp", "_memset_pattern16", "_snprintf"),
    *("_pthread_mutex_lock", "_pthread_mutex_unlock", "_strcmp", "_strdup", "_strncmp"),
    *("_strstr", "_vsnprintf"),
}
# Exported by libc++ of macOS 13, and used by nothing in the wheels, which are for macOS 11: string
# streams, which its headers instantiate there since macOS 12, and a few that they take by other
# ways. Operators new and delete are bound weakly by others.
OF_MACOS_13 = {
    "__ZNKSt3__115basic_stringbufIcNS_11char_traitsIcEENS_9allocatorIcEEE3strEv",
    "__ZNSt3__16localeC1Ev",
    "__ZTISt12length_error",
    "__ZTTNSt3__119basic_ostringstreamIcNS_11char_traitsIcEENS_9allocatorIcEEEE",
    "__ZTVNSt3__115basic_streambufIcNS_11char_traitsIcEEEE",
    "__ZTVNSt3__115basic_stringbufIcNS_11char_traitsIcEENS_9allocatorIcEEEE",
    "__ZTVNSt3__119basic_ostringstreamIcNS_11char_traitsIcEENS_9allocatorIcEEEE",
    "__ZdlPvm",
    "__Znwm",
}


PLATFORMS = ("macosx_13_0_arm64", "macosx_11_0_arm64")  # of wheels that a Mac installs


@pytest.fixture(scope="module")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model library: the KV state, and one kernel."""
    path = tmp_path_factory.mktemp("metal") / "model.dylib"
    link(build(SPEC, (CacheOfLayer(1, 4),), (RotaryKind(4, 2, 1e4),)), path, SPEC)
    return path


@pytest.fixture(scope="module")
def library(library_path: Path) -> MacosLibrary:
    return read_macos_library(library_path)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> tuple[MacosLibrary, ...]:
    """The libraries that a Mac's process has loaded before ours."""
    folder = tmp_path_factory.mktemp("wheels")
    wanted = {
        "apache-tvm": ("tvm/lib/libtvm_runtime.dylib", "tvm/lib/libtvm_runtime_metal.dylib"),
        "apache-tvm-ffi": ("tvm_ffi/lib/libtvm_ffi.dylib",),
    }
    found = []
    for package, names in wanted.items():
        with zipfile.ZipFile(wheel(package, PLATFORMS, "arm64")) as archive:
            found += [read_macos_library(Path(archive.extract(name, folder))) for name in names]
    return tuple(found)


def test_it_is_a_library_for_apple_silicon_and_macos_13(library: MacosLibrary) -> None:
    assert (library.cpu, library.kind) == ("ARM64", "DYLIB")
    assert library.oldest_macos == (13, 0, 0)


def test_every_page_is_signed(library_path: Path, tmp_path: Path) -> None:
    assert unsigned_pages(library_path) == []
    content = bytearray(library_path.read_bytes())
    content[0x5000] ^= 1
    broken = tmp_path / "broken.dylib"
    broken.write_bytes(content)
    assert len(unsigned_pages(broken)) == 1


def test_it_exports_what_tvm_looks_up_and_nothing_else(library: MacosLibrary) -> None:
    assert {"___tvm_ffi__library_bin", "___tvm_ffi_gemma4_kv_create"} <= library.exports
    assert "___tvm_ffi_gemma4_metal_install" in library.exports
    others = {name for name in library.exports if not name.startswith(("___tvm_ffi_", "___TVM"))}
    assert others == {"__mh_dylib_header", "___dso_handle"}


def test_it_asks_for_known_libraries_only(library: MacosLibrary) -> None:
    assert set(library.imports) == {LIBCPP, LIBSYSTEM, TVM}
    assert library.imports[LIBSYSTEM] <= OF_LIBSYSTEM
    assert all(name.startswith("_TVM") for name in library.imports[TVM])


def test_tvms_wheels_for_macos_export_what_it_asks_for(
    library: MacosLibrary, runtime: tuple[MacosLibrary, ...]
) -> None:
    exported = frozenset().union(*(other.exports for other in runtime))
    assert library.imports[TVM] - exported == set()


def test_macos_has_the_cpp_symbols_that_it_asks_for(
    library: MacosLibrary, runtime: tuple[MacosLibrary, ...]
) -> None:
    used = frozenset().union(*(other.imports[LIBCPP] for other in runtime))
    assert library.imports[LIBCPP] - used - OF_MACOS_13 == set()


def test_it_is_the_same_bytes_in_every_directory(library_path: Path, tmp_path: Path) -> None:
    again = tmp_path / "model.dylib"
    link(build(SPEC, (CacheOfLayer(1, 4),), (RotaryKind(4, 2, 1e4),)), again, SPEC)
    assert again.read_bytes() == library_path.read_bytes()
    assert str(tmp_path).encode() not in again.read_bytes()
    assert str(Path.home()).encode() + b"/" not in again.read_bytes()


def test_it_holds_the_source_of_its_kernels(library_path: Path) -> None:
    content = library_path.read_bytes()
    assert b"#include <metal_stdlib>" in content
    assert DOUBLE.encode() in content


@pytest.mark.parametrize("name", ["cpu", "webgpu"])
def test_spec_of_another_target_is_refused(name: str, tmp_path: Path) -> None:
    other: TargetSpec = target_spec(name)
    with pytest.raises(TargetError, match=name):
        metal.link(None, tmp_path / "model.dylib", other)

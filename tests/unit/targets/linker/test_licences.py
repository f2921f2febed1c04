"""LICENSE and NOTICE of packages: everything that is linked, and nothing on the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile import abi, targets
from gemma4_compile.errors import TargetError
from gemma4_compile.targets import cpu, metal, webgpu
from gemma4_compile.targets.linker import zig
from gemma4_compile.targets.linker.licences import licence_texts
from gemma4_compile.targets.linker.runtime_objects import Platform

LINUX = cpu.native_platform("linux", "x86_64")
SOURCES = {  # of zig's libraries by the file that is linked
    "libc.a": ("lib/libc/musl/COPYRIGHT", "lib/libc/wasi/LICENSE"),
    "libc++.a": ("lib/libcxx/LICENSE.TXT",),
    "libc++abi.a": ("lib/libcxxabi/LICENSE.TXT",),
    "libunwind.a": ("lib/libunwind/LICENSE.TXT",),
    "libc_nonshared.a": ("lib/libc/glibc/LICENSES",),
    "libcompiler_rt.a": ("LICENSE",),
    "libzigc.a": ("LICENSE",),
    "crt1-reactor.o": ("lib/libc/wasi/LICENSE",),
}


@pytest.mark.parametrize("target", [webgpu.WASM, metal.MACOS, LINUX], ids=lambda found: found.name)
def test_every_linked_library_has_its_licence(target: Platform) -> None:
    linked = [name for name in target.libraries if ".so." not in name]  # those are found at runtime
    expected = {file for name in linked for file in SOURCES[name]}
    assert expected <= {file for _, file in target.licences}
    texts = licence_texts([target], ["model.x"])
    assert tuple(texts) == abi.LICENCE_FILES
    root = zig.find_zig().parent
    for _, file in target.licences:
        first = (root / file).read_text("utf-8").split()[:20]
        assert " ".join(first) in " ".join(texts["LICENSE"].split())
    assert "Apache TVM FFI\nCopyright" in texts["NOTICE"]
    assert "Apache TVM\nCopyright" in texts["NOTICE"]


def test_the_weights_are_not_covered() -> None:
    texts = targets.library_licences({"model.wasm": "webgpu"})
    head = " ".join(texts["LICENSE"].split("=====")[0].split())
    assert "the model library `model.wasm`" in head
    assert "do not cover the weights" in head
    assert texts == targets.library_licences({"model.wasm": "webgpu"})
    assert "weights" not in licence_texts([webgpu.WASM], ())["LICENSE"].split("=====")[0]


def test_a_licence_that_is_missing_is_named() -> None:
    with pytest.raises(TargetError, match=r"`ziglang` has no file NO_SUCH") as caught:
        licence_texts([replace(LINUX, licences=(("something", "lib/NO_SUCH"),))], ["model.so"])
    assert "reinstall `ziglang`" in (caught.value.hint or "")


def test_names_that_would_hide_a_package_of_this_machine_stay_out() -> None:
    for text in licence_texts([LINUX], ["model.so"]).values():
        assert str(Path.home()) not in text

"""The headers of `targets/native/shims`, compiled for this machine and called from here."""

import base64
import platform
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile.targets import cpu
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker import runtime_objects
from gemma4_compile.targets.linker.cpp_library import cpp_library


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("shims")
    target = cpu.native_platform(sys.platform, platform.machine())
    sources = runtime_objects.collect_sources(target)
    sources["shims.cc"] = Path(__file__).with_name("shims.cc").read_bytes()
    runtime_objects.lay_out(sources, folder / "tree")
    runtime_objects.compile_unit(target, folder / "tree", "shims.cc", folder / "shims.o")
    linker.link_objects(target, [str(folder / "shims.o")], cpp_library(target), folder / "shims.so")
    return tvm_ffi.load_module(str(folder / "shims.so"))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 6, 7, 255, 1000])
def test_base64_is_that_of_python(shims: Any, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    text = base64.b64encode(data)
    assert shims.encode(data) == text
    assert shims.decode(text, size) == data
    assert shims.decode(text, size + 9) == data


def test_base64_ends_at_what_is_no_digit(shims: Any) -> None:
    assert shims.decode(b"QUJD*QUJD", 6) == b"ABC"


def test_binary_form_is_little_endian_words_and_counts(shims: Any) -> None:
    expected = b"".join(
        [
            b"\x02\x01",
            struct.pack("<BBH", 2, 16, 1),
            struct.pack("<ii", 15, 3),
            struct.pack("<Q", 4) + b"text",
            struct.pack("<Qqq", 2, -1, 2),
            struct.pack("<QQ", 2, 1) + b"a" + struct.pack("<Q", 2) + b"bc",
            struct.pack("<QQ", 1, 3) + b"key" + struct.pack("<Q", 5) + b"value",
        ]
    )
    assert shims.serialize() == expected
    assert shims.deserialize(expected)


def test_every_cut_is_noticed(shims: Any) -> None:
    whole = shims.serialize()
    assert not any(shims.deserialize(whole[:size]) for size in range(len(whole)))

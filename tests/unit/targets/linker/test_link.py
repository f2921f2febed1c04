"""The link of a model library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import TargetError
from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.targets import metal
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker import zig
from gemma4_compile.targets.linker.cpp_library import cpp_library
from gemma4_compile.targets.linker.runtime_objects import Platform, runtime_objects
from gemma4_compile.targets.webgpu import WASM

QUICK = replace(WASM, name="quick", units=("wasm_support.cc",))
"""One small unit of the real ones."""


def test_a_library_without_its_functions_is_refused(tmp_path: Path) -> None:
    """As an empty object leaves it: zig links what there is."""
    whole, native = replace(QUICK, is_whole=True), replace(QUICK, is_whole=False)
    names = [f"{name}\0".encode() for name in abi.LINKED_FUNCTIONS]
    library = tmp_path / "library"
    library.write_bytes(b"".join(names))
    linker._check_functions(library, whole)
    with pytest.raises(TargetError, match=f"lacks {len(names)} of our functions"):
        linker._check_functions(library, native)
    library.write_bytes(b"".join(names[:-1]))
    with pytest.raises(TargetError, match="gemma4_kv_length"):
        linker._check_functions(library, whole)


OWN_WAY: dict[str, tuple[str, ...]] = {  # of zig to link the same by itself
    "wasm32": (
        *("-mexec-model=reactor", "-Os", "-s", "-Wl,-z,stack-size=1048576"),
        "-Wl,--import-symbols",
        *(f"-Wl,{flag}" for flag in WASM.link_flags if "export=" in flag),
    ),
    "darwin-aarch64": tuple(flag for flag in metal.MACOS.link_flags if flag != "-rtlib=none"),
}


@pytest.mark.package
@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        # Every library of tests/web is linked so; zig compiles a C++ library of its own for this.
        pytest.param(WASM, marks=pytest.mark.exhaustive),
        metal.MACOS,
    ],
    ids=lambda found: found.name,
)
def test_a_link_is_that_of_zig_itself(target: Platform, tmp_path: Path) -> None:
    """The libraries of the cache, and flags for the linker alone, give the bytes of `zig c++`."""
    objects = [str(path) for path in runtime_objects(target)]
    (tmp_path / "ours").mkdir()
    (tmp_path / "zigs").mkdir()
    linker.link_objects(target, objects, cpp_library(target), tmp_path / "ours" / "model")
    command = ["c++", "-target", target.triple, *OWN_WAY[target.name], *objects]
    # Its libraries are kept, as those of tests/metal: it compiles them for a minute.
    zig.run([*command, "-o", str(tmp_path / "zigs" / "model")], tmp_path, cache_folder() / "zig")
    expected = (tmp_path / "zigs" / "model").read_bytes()
    assert len(expected) > 100_000
    assert (tmp_path / "ours" / "model").read_bytes() == expected

"""Compiles what every model library is linked with, for `make wheel` to put into the wheel.

    python tools/prebuild.py targets/prebuilt

writes entries as the cache of a machine holds them: objects and archives, each with its sha256, in
folders that are named by a hash of all that they are made from. A package that was built from other
sources, or that meets another version of TVM or zig, does not find them and compiles its own. The
bytes are the same wherever they are built: build them and compare.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from gemma4_compile.targets import cpu, metal, webgpu
from gemma4_compile.targets.linker.cpp_library import cpp_library
from gemma4_compile.targets.linker.licences import licence_texts
from gemma4_compile.targets.linker.runtime_objects import Platform, runtime_objects

PLATFORMS: tuple[Platform, ...] = (
    webgpu.WASM,
    metal.MACOS,
    cpu.native_platform("linux", "x86_64"),
    cpu.native_platform("linux", "aarch64"),
)


def prebuild(output: Path, platforms: tuple[Platform, ...] = PLATFORMS) -> None:
    """Write the entries of platforms into a folder, which is made anew."""
    shutil.rmtree(output, ignore_errors=True)
    for target in platforms:
        for paths in (runtime_objects(target, print), list(cpp_library(target, print).values())):
            entry = paths[0].parent
            shutil.copytree(entry, output / entry.name)
            print(f"{output / entry.name}")
        licences = output / f"licences-{target.name}"
        licences.mkdir()
        for name, text in licence_texts(target, None).items():
            (licences / name).write_text(text, "utf-8")


if __name__ == "__main__":
    prebuild(Path(sys.argv[1]))

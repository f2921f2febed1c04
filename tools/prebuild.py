"""Compiles what every model library is linked with, before the first library is.

    python tools/prebuild.py

fills this machine's cache for the platforms that tests link for, as `make setup` does.

    python tools/prebuild.py targets/prebuilt

writes entries as a cache holds them, for `make wheel` to put into the wheel: objects and archives,
each with its sha256, in folders that are named by a hash of all that they are made from. A package
that was built from other sources, or that meets another version of TVM or zig, does not find them
and compiles its own. The bytes are the same wherever they are built: build them and compare.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from gemma4_compile.system.loading import without_torch

with without_torch():
    from gemma4_compile.targets import cpu, metal, webgpu
    from gemma4_compile.targets.linker.cpp_library import cpp_library
    from gemma4_compile.targets.linker.licences import licence_texts
    from gemma4_compile.targets.linker.runtime_objects import Platform, runtime_objects

PLATFORMS: tuple[Platform, ...] = (
    webgpu.WASM,
    metal.MACOS,
    cpu.native_platform("linux", "x86_64"),
    cpu.native_platform("linux", "aarch64"),
    cpu.native_platform("win32", "AMD64"),
)


def prebuild(output: Path, platforms: tuple[Platform, ...] = PLATFORMS) -> None:
    """Write the entries of platforms into a folder, which is made anew."""
    shutil.rmtree(output, ignore_errors=True)
    for target in platforms:
        for entry in compiled(target):
            shutil.copytree(entry, output / entry.name)
            print(f"{output / entry.name}")
        licences = output / f"licences-{target.name}"
        licences.mkdir()
        for name, text in licence_texts([target], ()).items():
            (licences / name).write_text(text, "utf-8")


def tested_platforms() -> tuple[Platform, ...]:
    """The platforms that tests link for on this machine."""
    here = cpu.this_machine()
    return (webgpu.WASM, here, metal.MACOS, metal.with_launcher(here))


def compiled(target: Platform) -> Iterator[Path]:
    """The folders with a platform's objects and with its archives, compiled where they are not."""
    yield from dict.fromkeys(path.parent for path in runtime_objects(target, print))
    yield next(iter(cpp_library(target, print).values())).parent


def main(arguments: list[str]) -> None:
    """Fill the folder that is named, or this machine's cache."""
    if arguments:
        prebuild(Path(arguments[0]))
        return
    for target in dict.fromkeys(tested_platforms()):
        for _ in compiled(target):
            pass


if __name__ == "__main__":
    main(sys.argv[1:])

"""The C++ and C libraries that zig links, built by zig once per machine.

zig brings them as sources and keeps what it builds under names that depend on where zig itself is
installed, so that every environment would build them again. Here the finished archives are taken
from a first link and kept by zig's version and target.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker import object_cache, zig
from gemma4_compile.targets.linker.object_cache import Progress
from gemma4_compile.targets.linker.runtime_objects import Platform

PROBE = "int probe() { return 0; }\n"
"""zig links its whole library with any program in C++."""


_PLACE = re.compile(rb"\bzig/o/[0-9a-f]{32}/")
"""Names of members in an archive: the number depends on where zig is installed."""


def library_entry(target: Platform) -> str:
    """Return the name of the cache entry: flags decide how the libraries are optimised."""
    made_by = (zig.version(), target.triple, target.library_flags, target.libraries)
    digest = hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]
    return f"cpp-library-{target.name}-{digest}"


def cpp_library(target: Platform, progress: Progress | None = None) -> dict[str, Path]:
    """Return zig's libraries for a platform by name, building them if there are none.

    Raises
    ------
    TargetError
        If zig is missing or fails, or the cache directory cannot be written.
    """
    message = f"building the C++ library for {target.name} (once per machine)"

    def make(scratch: Path, objects: Path) -> None:
        object_cache.report(message, progress)
        zig_cache, source = scratch / "zig", scratch / "probe.cc"

        def waiting(seconds: float) -> None:
            built = sum(1 for _ in zig_cache.glob("o/*/*.o"))
            object_cache.report(f"{message}: {built} files, {seconds:.0f} s", progress)

        source.write_text(PROBE, "utf-8", newline="\n")
        flags = ["-target", target.triple, *target.library_flags]
        output = str(scratch / "probe")
        zig.run(["c++", *flags, source.name, "-o", output], scratch, zig_cache, waiting)
        for name in target.libraries:
            (objects / name).write_bytes(_same_anywhere(_find(zig_cache, name).read_bytes()))

    paths = object_cache.find_or_make(library_entry(target), target.libraries, make, progress)
    return dict(zip(target.libraries, paths, strict=True))


def _find(zig_cache: Path, name: str) -> Path:
    found = sorted(zig_cache.glob(f"o/*/{name}"))
    if len({path.read_bytes() for path in found}) != 1:
        raise TargetError(
            f"zig built {len(found)} files of the name `{name}`, expected one",
            hint="reinstall ziglang in the version that pyproject.toml names",
        )
    return found[0]


def _same_anywhere(content: bytes) -> bytes:
    """Replace what depends on the environment, in the same length."""
    return _PLACE.sub(lambda found: b"zig/o/" + b"0" * 32 + b"/", content)

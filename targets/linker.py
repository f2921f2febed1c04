"""zig as C++ compiler and linker: our C++ against TVM's wheels, then one library per model.

The wheels of apache-tvm and apache-tvm-ffi hold the runtime's sources and headers. They are laid
out in a temporary tree together with our own (`native/`), compiled there once per machine, and the
objects are kept in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import relax

from gemma4_compile import abi
from gemma4_compile.errors import TargetError
from gemma4_compile.targets import object_cache

logger = logging.getLogger(__name__)

NATIVE = Path(__file__).parent / "native"
REPORTED_LINES = 20
"""How much of zig's output an error shows: the first error stands near the end."""

Progress = Callable[[str], None]
Pack = Callable[[Any, Path], Path]
"""Writes an executable's device code into a folder, as a file that zig compiles or links."""


@dataclass(frozen=True)
class Platform:
    """What our C++ is compiled for.

    Attributes
    ----------
    name : short name, part of the cache directory's name
    triple : zig's target
    units : C++ files of the tree that are compiled, each into one object
    compile_flags : flags for every unit
    link_flags : flags of the link of a model library
    left_out : sources of TVM's runtime that the units include and that are taken as empty
    is_whole : the library holds the runtime too, and its executable is a TVM "system library"
    """

    name: str
    triple: str
    units: tuple[str, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    is_whole: bool = False


def find_zig() -> Path:
    """Return the zig executable of the `ziglang` package."""
    spec = importlib.util.find_spec("ziglang")
    locations = spec.submodule_search_locations if spec is not None else None
    for location in locations or ():
        for name in ("zig", "zig.exe"):
            executable = Path(location, name)
            if executable.is_file():
                return executable
    raise TargetError(
        "the `ziglang` package is not installed: it links every model library",
        hint=f"run `{sys.executable} -m pip install ziglang`",
    )


def cache_directory() -> Path:
    """Return the directory for compiled objects: in $XDG_CACHE_HOME or the system's caches."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"], "gemma4_compile")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gemma4_compile"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home()), "gemma4_compile", "Cache")
    return Path.home() / ".cache" / "gemma4_compile"


def runtime_objects(target: Platform, progress: Progress | None = None) -> list[Path]:
    """Return the compiled objects of our C++ for a platform, compiling them if the cache has none.

    The cache entry is named by a hash of every source, flag and version that goes into it, and
    appears under its name only when it is complete. Two processes that build at the same time both
    succeed; the first one's result stays. A damaged entry is compiled again.

    Raises
    ------
    TargetError
        If zig or a source is missing, zig fails, or the cache directory cannot be written.
    """
    sources = _collect_sources(target)
    entry = cache_directory() / f"runtime-{target.name}-{_cache_key(target, sources)}"
    names = [Path(unit).stem + ".o" for unit in target.units]
    try:
        if object_cache.is_whole(entry, names):
            return [entry / name for name in names]
        if entry.exists():
            _report(f"the cache entry {entry} is damaged: compiling it again", progress)
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=entry.parent) as scratch:
            objects = Path(scratch, "objects")
            objects.mkdir()
            tree = Path(scratch, "tree")
            _lay_out(sources, tree)
            for index, unit in enumerate(target.units, start=1):
                step = f"{index} of {len(target.units)}, once per machine"
                _report(f"compiling {unit} for {target.name} ({step})", progress)
                _compile(target, tree, unit, objects / (Path(unit).stem + ".o"))
            # The first link makes zig build its C library and libc++: here it is announced.
            _report(f"building the C++ library for {target.name} (once per machine)", progress)
            _link(target, sorted(map(str, objects.iterdir())), Path(scratch, "first-link"))
            object_cache.publish(objects, entry, names, Path(scratch))
    except OSError as error:
        raise TargetError(
            f"cannot write compiled objects to {entry}: {error.strerror or error}",
            hint="look at what is there, free some space, or set XDG_CACHE_HOME to another place",
        ) from error
    return [entry / name for name in names]


def link_library(
    executable: relax.VMExecutable,
    output: Path,
    target: Platform,
    check: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
    pack: Pack | None = None,
) -> None:
    """Link a built executable and our C++ into `output`, which appears whole or not at all.

    Parameters
    ----------
    executable : what relax.build returned; it has one kernel or more
    output : file to write; its directory exists
    target : the platform of the executable's host code
    check : looks at the linked file before it gets its name; raises TargetError to refuse it
    progress : is told what takes long; without it, messages go to the log
    pack : for device code that TVM's own packing does not serve

    Raises
    ------
    TargetError
        If the toolchain is missing or fails, or the check refuses the result.
    """
    runtime = runtime_objects(target, progress)
    _report(f"linking {output.name}", progress)
    try:
        _link_atomically(executable, output, target, runtime, check, pack)
    except OSError as error:
        raise TargetError(
            f"cannot write {output}: {error.strerror or error}", hint="free some space there"
        ) from error


def _link_atomically(
    executable: relax.VMExecutable,
    output: Path,
    target: Platform,
    runtime: Sequence[Path],
    check: Callable[[Path], None] | None,
    pack: Pack | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix=".link-", dir=output.parent) as scratch:
        linked = Path(scratch, output.name)

        def run_zig(path: str, model_objects: Sequence[str], options: object = None) -> None:
            _link(target, [*map(str, runtime), *model_objects], Path(path))

        run_zig.object_format = "o"  # type: ignore[attr-defined]
        run_zig.need_system_lib = target.is_whole  # type: ignore[attr-defined]
        run_zig.output_format = output.suffix.removeprefix(".")  # type: ignore[attr-defined]
        packing: dict[str, Any] = {}
        if pack is not None:
            packing["fpack_imports"] = lambda module, *_: str(pack(module, Path(scratch)))
        executable.export_library(str(linked), fcompile=run_zig, workspace_dir=scratch, **packing)
        _check_functions(linked, target)
        if check is not None:
            check(linked)
        os.replace(linked, output)


def _check_functions(library: Path, target: Platform) -> None:
    """Raise TargetError if a linked library lacks a function of ours that callers look up.

    What a library shows, it names: a native one among its symbols, a whole one in the table that
    its functions are registered from.
    """
    content, prefix = library.read_bytes(), "" if target.is_whole else "__tvm_ffi_"
    missing = [name for name in abi.KV_FUNCTIONS if f"{prefix}{name}\0".encode() not in content]
    if missing:
        raise TargetError(
            f"the linked library lacks {len(missing)} functions of the KV state, first "
            f"`{missing[0]}`",
            hint=f"the compiled objects may be damaged: delete {cache_directory()} and try again",
        )


# --- Sources ---


def _package_directory(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise TargetError(
            f"the `{name}` package is not installed",
            hint="reinstall gemma4-compile with its dependencies",
        )
    return Path(spec.submodule_search_locations[0])


def _collect_sources(target: Platform) -> dict[str, bytes]:
    """Return every file of the tree by its path in it; ours replace TVM's of the same path."""
    tvm, tvm_ffi = _package_directory("tvm"), _package_directory("tvm_ffi")
    roots = (
        (tvm / "include", "include"),
        (tvm / "src" / "runtime", "src/runtime"),
        (tvm / "web" / "emcc", "web/emcc"),
        (tvm_ffi / "include", "include"),
        (tvm_ffi / "src" / "ffi", "3rdparty/tvm-ffi/src/ffi"),
        (NATIVE / "shims", "."),
        (NATIVE, "."),
    )
    sources: dict[str, bytes] = {}
    for directory, prefix in roots:
        if not directory.is_dir():
            raise TargetError(
                f"{directory} is missing: the model library is built from the sources in there",
                hint="reinstall apache-tvm and apache-tvm-ffi in the versions asked for",
            )
        for path in _cpp_files(directory):
            relative = path.relative_to(directory).as_posix()
            if directory == NATIVE and "/" in relative:
                continue  # the shims have their own root
            sources[relative if prefix == "." else f"{prefix}/{relative}"] = path.read_bytes()
    sources.update(dict.fromkeys(target.left_out, b""))
    return sources


def _cpp_files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.suffix in (".h", ".cc"))


def _cache_key(target: Platform, sources: dict[str, bytes]) -> str:
    made_by = (
        target.triple,
        target.units,
        target.compile_flags,
        importlib.metadata.version("ziglang"),
        "sha256",  # of each object beside it
    )
    digest = hashlib.sha256(repr(made_by).encode())
    for name in sorted(sources):
        digest.update(f"{name}\0{len(sources[name])}\0".encode())
        digest.update(sources[name])
    return digest.hexdigest()[:16]


def _lay_out(sources: dict[str, bytes], tree: Path) -> None:
    for name, content in sources.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# --- zig ---


def _compile(target: Platform, tree: Path, unit: str, output: Path) -> None:
    flags = ["-target", target.triple, *target.compile_flags, f"-ffile-prefix-map={tree}=."]
    _run_zig([*flags, "-I.", "-Iinclude", "-c", unit, "-o", str(output)], tree)


def _link(target: Platform, objects: Sequence[str], output: Path) -> None:
    flags = ["-target", target.triple, *target.link_flags]
    _run_zig([*flags, "-o", str(output), *objects], output.parent)


def _run_zig(arguments: Sequence[str], directory: Path) -> None:
    command = [str(find_zig()), "c++", *arguments]
    zig_cache = cache_directory() / "zig"
    environment = {
        "ZIG_GLOBAL_CACHE_DIR": str(zig_cache),
        "ZIG_LOCAL_CACHE_DIR": str(zig_cache),
        **os.environ,
    }
    logger.debug("running %s", " ".join(command))
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise TargetError(
            f"cannot run {command[0]}: {error.strerror}", hint="reinstall ziglang"
        ) from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-REPORTED_LINES:]
        is_full = any("NoSpaceLeft" in line or "No space left" in line for line in lines)
        raise TargetError(
            f"zig ended with exit code {done.returncode}:\n" + "\n".join(lines),
            hint=f"free some space for {directory} and {zig_cache}"
            if is_full
            else f"if the cache may be damaged, delete {cache_directory()} and try again",
        )


def _report(message: str, progress: Progress | None) -> None:
    if progress is not None:
        progress(message)
    else:
        logger.info(message)

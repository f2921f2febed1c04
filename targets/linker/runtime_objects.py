"""Our C++ and TVM's runtime as objects, compiled by zig once per machine.

The wheels of apache-tvm and apache-tvm-ffi hold the runtime's sources and headers. They are laid
out in a temporary tree together with our own (`native/`) and compiled there.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker import object_cache, zig
from gemma4_compile.targets.linker.object_cache import Progress

NATIVE = Path(__file__).parents[1] / "native"
_SOURCES = (".h", ".cc", ".def")
OBJECTS = "*"


@dataclass(frozen=True)
class Platform:
    """Platform that our C++ is compiled and linked for.

    Attributes
    ----------
    name : short name, part of the names of cache entries
    triple : zig's target
    units : C++ files of the tree that are compiled, each into one object, and lists of a DLL's
        functions (`.def`), each into what is linked to import them
    compile_flags : flags for every unit
    library_flags : flags of a link for which zig builds its C++ library as it is wanted here
    linker : zig's command that links
    link_flags : its flags for a model library
    link_order : what is linked, in order: zig's libraries by name, and OBJECTS where ours are
    licences : of the libraries: what each is, and zig's file of it
    left_out : sources of TVM's runtime that the units include and that are taken as empty
    is_whole : the library holds the runtime too, and its executable is a TVM "system library"
    output_option : the linker's option before the name of the library, with which it is one
        argument if it ends with a colon
    """

    name: str
    triple: str
    units: tuple[str, ...]
    compile_flags: tuple[str, ...]
    library_flags: tuple[str, ...]
    linker: tuple[str, ...]
    link_flags: tuple[str, ...]
    link_order: tuple[str, ...]
    licences: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...] = ()
    is_whole: bool = False
    output_option: str = "-o"

    @property
    def libraries(self) -> tuple[str, ...]:
        """Names of zig's libraries that are linked."""
        return tuple(name for name in self.link_order if name != OBJECTS)


def runtime_objects(target: Platform, progress: Progress | None = None) -> list[Path]:
    """Return the compiled objects of our C++ for a platform, compiling them if there are none.

    Units of each folder are an entry. Its name holds a hash of every source, flag and version that
    goes into it.

    Raises
    ------
    TargetError
        If zig or a source is missing, zig fails, or the cache directory cannot be written.
    """
    return [path for part in parts(target) for path in _entry(part, progress)]


def parts(target: Platform) -> list[Platform]:
    """A platform with the units of each folder of ours: what all have in common is first."""
    folders = sorted(_folders(target))
    of = {folder: [unit for unit in target.units if _folder(unit) == folder] for folder in folders}
    return [replace(target, units=tuple(units)) for units in of.values() if units]


def _entry(target: Platform, progress: Progress | None) -> list[Path]:
    sources = collect_sources(target)

    def make(scratch: Path, objects: Path) -> None:
        tree = scratch / "tree"
        lay_out(sources, tree)
        for index, unit in enumerate(target.units, start=1):
            step = f"{index} of {len(target.units)}, once per machine"
            message = f"compiling {unit} for {target.name} ({step})"
            object_cache.report(message, progress)
            waiting = _say_seconds(message, progress)
            compile_unit(target, tree, unit, objects / _object(unit), waiting)

    names = [_object(unit) for unit in target.units]
    return object_cache.find_or_make(entry_name(target, sources), names, make, progress)


def _object(unit: str) -> str:
    return Path(unit).stem + ".o"


def _say_seconds(message: str, progress: Progress | None) -> zig.Waiting:
    return lambda seconds: object_cache.report(f"{message}: {seconds:.0f} s", progress)


def compile_unit(
    target: Platform, tree: Path, unit: str, output: Path, waiting: zig.Waiting | None = None
) -> None:
    """Compile a C++ file or a DLL's list of a tree; TargetError as `zig.run`."""
    if unit.endswith(".def"):
        arguments = ["dlltool", "-m", "i386:x86-64", "-d", unit, "-l", str(output)]
    else:
        flags = ["-target", target.triple, *target.compile_flags, f"-ffile-prefix-map={tree}=."]
        arguments = ["c++", *flags, "-I.", "-Iinclude", "-c", unit, "-o", str(output)]
    zig.run(arguments, tree, tree.parent / "zig", waiting)


# --- Sources ---


def _package_directory(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise TargetError(
            f"the `{name}` package is not installed",
            hint="reinstall gemma4-compile with its dependencies",
        )
    return Path(spec.submodule_search_locations[0])


def collect_sources(target: Platform) -> dict[str, bytes]:
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
            folder = relative.partition("/")[0] if "/" in relative else ""
            if directory == NATIVE and folder not in _folders(target):
                continue  # of another platform, or the shims, which have their own root
            sources[relative if prefix == "." else f"{prefix}/{relative}"] = path.read_bytes()
    sources.update(dict.fromkeys(target.left_out, b""))
    return sources


def _folders(target: Platform) -> set[str]:
    """Folders of ours that a platform's units are in; "" for files beside them."""
    return {"", *(_folder(unit) for unit in target.units)}


def _folder(unit: str) -> str:
    """The folder of ours that a unit is in; "" for TVM's, and for files beside them."""
    return unit.rpartition("/")[0] if (NATIVE / unit).is_file() else ""


def _cpp_files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.suffix in _SOURCES)


def entry_name(target: Platform, sources: dict[str, bytes]) -> str:
    """Return the name of the cache entry for a platform and the sources of its tree."""
    made_by = (
        target.triple,
        target.units,
        target.compile_flags,
        zig.version(),
        "sha256",  # of each object next to it
    )
    digest = hashlib.sha256(repr(made_by).encode())
    for name in sorted(sources):
        digest.update(f"{name}\0{len(sources[name])}\0".encode())
        digest.update(sources[name])
    return f"runtime-{target.name}-{digest.hexdigest()[:16]}"


def lay_out(sources: dict[str, bytes], tree: Path) -> None:
    """Write the files of a tree."""
    for name, content in sources.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

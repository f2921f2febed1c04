"""Links one library per model: its executable, our C++, TVM's runtime and zig's C++ library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tvm_ffi
from tvm import relax

from gemma4_compile import abi
from gemma4_compile.errors import TargetError
from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.system.files import replace_file, scratch_folder
from gemma4_compile.targets.linker import object_cache, zig
from gemma4_compile.targets.linker.cpp_library import cpp_library
from gemma4_compile.targets.linker.object_cache import Progress
from gemma4_compile.targets.linker.runtime_objects import OBJECTS, Platform, runtime_objects

Pack = Callable[[tvm_ffi.Module, Path], Path]
"""Writes an executable's device code into a folder, as a file that zig compiles or links."""


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
    progress : is given what takes long; without it, messages go to the log
    pack : for device code that TVM's own packing does not serve

    Raises
    ------
    TargetError
        If the toolchain is missing or fails, or the check refuses the result.
    """
    runtime = runtime_objects(target, progress)
    libraries = cpp_library(target, progress)
    object_cache.report(f"linking {output.name}", progress)
    try:
        _link_atomically(executable, output, target, runtime, libraries, check, pack)
    except OSError as error:
        raise TargetError(
            f"cannot write {output}: {error.strerror or error}", hint="free some space there"
        ) from error


def _link_atomically(
    executable: relax.VMExecutable,
    output: Path,
    target: Platform,
    runtime: Sequence[Path],
    libraries: Mapping[str, Path],
    check: Callable[[Path], None] | None,
    pack: Pack | None,
) -> None:
    with scratch_folder(prefix=".link-", dir=output.parent) as scratch:
        linked = Path(scratch, output.name)
        ours = object_cache.copies(runtime, Path(scratch, "runtime"))
        archives = object_cache.copies([*libraries.values()], Path(scratch, "libraries"))
        zigs = dict(zip(libraries, archives, strict=True))

        def run_zig(path: str, model_objects: Sequence[str], options: object = None) -> None:
            objects = [*map(str, ours), *model_objects]
            link_objects(target, objects, zigs, Path(path))

        run_zig.object_format = "o"  # type: ignore[attr-defined]
        run_zig.need_system_lib = target.is_whole  # type: ignore[attr-defined]
        run_zig.output_format = output.suffix.removeprefix(".")  # type: ignore[attr-defined]
        packing: dict[str, object] = {}
        if pack is not None:
            packing["fpack_imports"] = lambda module, *_: str(pack(module, Path(scratch)))
        executable.export_library(str(linked), fcompile=run_zig, workspace_dir=scratch, **packing)
        _check_functions(linked, target)
        if check is not None:
            check(linked)
        replace_file(linked, output)


def link_objects(
    target: Platform, objects: Sequence[str], libraries: Mapping[str, Path], output: Path
) -> None:
    """Link objects, and files of C or assembly, with zig's libraries; TargetError as `zig.run`.

    What is made on the way stays in the folder of `output`.
    """
    folder = output.parent
    ours = [
        _compile(target, path, folder) if path.endswith((".c", ".s")) else path for path in objects
    ]
    inputs: list[str] = []
    for name in target.link_order:
        inputs += ours if name == OBJECTS else [str(libraries[name])]
    option = target.output_option
    named = [f"{option}{output}"] if option.endswith(":") else [option, str(output)]
    zig.run([*target.linker, *target.link_flags, *named, *inputs], folder, folder / "zig")


def _compile(target: Platform, source: str, folder: Path) -> str:
    output = str(folder / f"{Path(source).stem}.o")
    options = ["-std=c23"] if source.endswith(".c") else []
    command = ["cc", "-target", target.triple, *options, "-c", source, "-o", output]
    zig.run(command, folder, folder / "zig")
    return output


def _check_functions(library: Path, target: Platform) -> None:
    """Raise TargetError if a linked library lacks a function of ours that callers look up.

    What a library shows, it names: a native one among its symbols, a whole one in the table that
    its functions are registered from.
    """
    content, prefix = library.read_bytes(), "" if target.is_whole else "__tvm_ffi_"
    missing = [name for name in abi.LINKED_FUNCTIONS if f"{prefix}{name}\0".encode() not in content]
    if missing:
        raise TargetError(
            f"the linked library lacks {len(missing)} of our functions, first `{missing[0]}`",
            hint=f"the compiled objects may be damaged: delete {cache_folder()} and try again",
        )

"""Which of a package's native libraries runs: the best one that this machine can, or a named one.

A package may hold libraries of several devices, systems and processors over one set of weights.
Those that are not needed here may be missing: packages are copied without them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.device_kinds import BROWSER, NATIVE_KINDS, is_of_pages
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.device import metal_tensors
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.library_file import (
    is_for_another_machine,
    machine_of,
    this_machine,
)
from gemma4_compile.runtime.package.tuned import kept_choice

_log = logging.getLogger(__name__)

_BROWSER_SUFFIX = ".wasm"
FASTEST_FIRST = tuple(NATIVE_KINDS)
"""Devices in the order in which they are tried."""


@dataclass(frozen=True)
class Candidate:
    """A native library of a package.

    Attributes
    ----------
    device : what it runs on; None where it does not run here
    lacks : why it does not; "" where it does
    expected : whether it is for this kind of machine, so that a user wants to know what it lacks
    """

    library: LibraryRecord
    device: Device | None
    lacks: str = ""
    expected: bool = True


@dataclass(frozen=True)
class Choice:
    """The library that runs.

    Attributes
    ----------
    notices : why libraries of devices that are usually faster do not
    """

    library: LibraryRecord
    notices: tuple[str, ...] = ()


def main_library(directory: Path) -> str | None:
    """The name of a package's main library, which its `build` describes; None without one."""
    found = Provenance.from_json(read_artifact(directory / abi.PROVENANCE_FILE)).libraries
    return found[0].name if found else None


def is_native(library: LibraryRecord) -> bool:
    """Return whether it is for the device of a process, and not for a page."""
    return library.device in NATIVE_KINDS and not is_for_browsers(library)


def is_for_browsers(library: LibraryRecord) -> bool:
    """Return whether it runs in a page."""
    return is_of_pages(library.device) or library.file.endswith(_BROWSER_SUFFIX)


def native_libraries(provenance: Provenance) -> list[LibraryRecord]:
    """The libraries that are no browser's, fastest device first, in the package's order."""
    order = {name: rank for rank, name in enumerate(FASTEST_FIRST)}
    found = [one for one in provenance.libraries if is_native(one)]
    return sorted(found, key=lambda one: order[one.device])


def for_pages(provenance: Provenance) -> Provenance:
    """The same package as it would be with its libraries for browsers alone."""
    others = {one.file for one in provenance.libraries if not is_for_browsers(one)}
    return _without(provenance, others)


def of_library(provenance: Provenance, library: LibraryRecord) -> Provenance:
    """The same package as it would be with this library alone."""
    others = {one.file for one in provenance.libraries} - {library.file}
    return replace(_without(provenance, others), library=library.file)


def without_absent(directory: Path, provenance: Provenance) -> Provenance:
    """The same package without the libraries whose files are not there; its main one stays.

    Whoever fetched a package for one device has left out those of others.
    """
    files = {one.file for one in provenance.libraries} - {provenance.library}
    return _without(provenance, {one for one in files if not os.path.lexists(directory / one)})


def _without(provenance: Provenance, files: Container[str]) -> Provenance:
    return replace(
        provenance,
        files={name: value for name, value in provenance.files.items() if name not in files},
        libraries=tuple(one for one in provenance.libraries if one.file not in files),
    )


def candidates(
    directory: Path,
    provenance: Provenance,
    open_device: Callable[[str], Device] = Device.open,
) -> Iterator[Candidate]:
    """The native libraries, fastest device first; devices are opened as one asks for more."""
    for library in native_libraries(provenance):
        yield _try(directory, provenance, library, open_device)


def _try(
    directory: Path,
    provenance: Provenance,
    library: LibraryRecord,
    open_device: Callable[[str], Device],
) -> Candidate:
    is_usual = NATIVE_KINDS[library.device].is_of_macs == this_machine().startswith("macOS")
    path, (nbytes, _) = directory / library.file, provenance.files[library.file]
    try:
        size, machine = path.stat().st_size, machine_of(path)
    except OSError as error:
        left_out = isinstance(error, FileNotFoundError)
        lacks = f"`{library.file}`: {error.strerror}"
        return Candidate(library, None, lacks, expected=is_usual and not left_out)
    if size != nbytes:
        lacks = f"`{library.file}` is damaged: expected {nbytes} bytes, found {size}"
        return Candidate(library, None, lacks, expected=is_usual)
    if is_for_another_machine(machine):
        lacks = f"it is for {machine}, and this machine is {this_machine()}"
        return Candidate(library, None, lacks, expected=False)
    try:
        device = open_device(library.device)
    except ArtifactError as error:
        return Candidate(library, None, str(error))
    lacks = metal_tensors.missing(library.features) if device.kind.is_of_macs else ""
    if lacks:  # made by name, beside one for every Mac
        return Candidate(library, None, lacks, expected=False)
    return Candidate(library, device)


def choose_library(
    directory: Path,
    provenance: Provenance,
    named: str | None = None,
    open_device: Callable[[str], Device] = Device.open,
) -> Choice:
    """The library to run: the named one, the one that tuning kept, or that of the fastest device.

    A package's only native library is taken as it is: what it lacks is said when it is loaded.

    Parameters
    ----------
    named : a library's name, or a device's
    open_device : opens a device by its name, or raises ArtifactError

    Raises
    ------
    ArtifactError
        If there is no native library, or none that runs here.
    UsageError
        If the package has no library of that name or device.
    """
    natives = native_libraries(provenance)
    if named is not None:
        library = _named(directory, provenance, natives, named, open_device)
        _log.info("library `%s`: --device %s", library.name, named)
        return Choice(library)
    if not natives:
        found = ", ".join(one.file for one in provenance.libraries)
        raise ArtifactError(
            f"`{directory}` holds no native library (found: {found})",
            hint=no_native_hint(provenance),
        )
    if len(natives) == 1:
        _check_features(directory, provenance, natives[0])
        _log.info("library `%s`: the package's only one for a process", natives[0].name)
        return Choice(natives[0])
    tried = list(candidates(directory, provenance, open_device))
    usable = [one for one in tried if one.device is not None]
    if not usable:
        raise ArtifactError(
            f"no library of `{directory}` runs on this machine ({this_machine()}): "
            + "; ".join(f"`{one.library.name}`: {one.lacks}" for one in tried),
            hint=_compile_hint(provenance, "cpu"),
        )
    chosen, kept = usable[0].library, None
    if len(usable) > 1:
        kept = kept_choice(directory, provenance, usable_devices(tried))
        chosen = next((one.library for one in usable if one.library.name == kept), chosen)
    why = "kept by --tune" if chosen.name == kept else "the fastest device that works here"
    lacks = "".join(f"; `{one.library.name}`: {one.lacks}" for one in tried if one.lacks)
    _log.info("library `%s`: %s%s", chosen.name, why, lacks)
    rank = FASTEST_FIRST.index(chosen.device)
    return Choice(
        chosen,
        tuple(
            f"`{one.library.name}` is not used: {one.lacks}"
            for one in tried
            if one.lacks and one.expected and FASTEST_FIRST.index(one.library.device) <= rank
        ),
    )


def _check_features(directory: Path, provenance: Provenance, library: LibraryRecord) -> None:
    """ArtifactError where a package's only native library asks for what its device lacks here."""
    if NATIVE_KINDS[library.device].is_of_macs and this_machine().startswith("macOS"):
        lacks = metal_tensors.missing(library.features)
        if lacks:
            raise _refused(directory, library, lacks, _compile_hint(provenance, "cpu"))


def _refused(directory: Path, library: LibraryRecord, lacks: str, hint: str) -> ArtifactError:
    return ArtifactError(
        f"library `{library.name}` of `{directory}` does not run on this machine "
        f"({this_machine()}): {lacks}",
        hint=hint,
    )


def usable_devices(tried: Sequence[Candidate]) -> dict[str, str]:
    """What the libraries that run here run on, by their names."""
    return {one.library.name: one.device.describe() for one in tried if one.device is not None}


def _named(
    directory: Path,
    provenance: Provenance,
    natives: Sequence[LibraryRecord],
    named: str,
    open_device: Callable[[str], Device],
) -> LibraryRecord:
    by_name = [one for one in provenance.libraries if one.name == named]
    found = by_name or [one for one in provenance.libraries if named in (one.device, one.target)]
    if not found:
        has = ", ".join(_shown(one) for one in provenance.libraries) or "none"
        target = named if named in (*FASTEST_FIRST, BROWSER) else "cpu"
        raise UsageError(
            f"--device: `{directory}` has no library `{named}` (it has: {has})",
            hint=_compile_hint(provenance, target),
        )
    native = [one for one in found if one in natives]
    if not native:
        raise UsageError(
            f"--device: library `{found[0].name}` of `{directory}` is for browsers",
            hint=f"gemma4-serve {directory} --device {BROWSER}, and open it in one; or "
            f"{_compile_hint(provenance, 'cpu')}",
        )
    if len(natives) == 1:
        _check_features(directory, provenance, natives[0])
        return natives[0]
    tried = [_try(directory, provenance, one, open_device) for one in native]
    usable = [one for one in tried if one.device is not None]
    if not usable:
        others = [one for one in natives if one not in native and _is_for_here(directory, one)]
        hint = _others_hint(provenance, others)
        raise _refused(directory, tried[0].library, tried[0].lacks, hint)
    if len(usable) > 1:  # several of one device
        kept = kept_choice(directory, provenance, usable_devices(tried))
        return next((one.library for one in usable if one.library.name == kept), usable[0].library)
    return usable[0].library


def _shown(library: LibraryRecord) -> str:
    return library.name if library.name == library.target else f"{library.name} ({library.target})"


def _is_for_here(directory: Path, library: LibraryRecord) -> bool:
    """Whether its file is there, and for a machine of this kind."""
    try:
        return not is_for_another_machine(machine_of(directory / library.file))
    except OSError:
        return False


def _others_hint(provenance: Provenance, others: Sequence[LibraryRecord]) -> str:
    if others:
        names = ", ".join(one.name for one in others)
        return f"leave out --device, or choose another library: {names}"
    return _compile_hint(provenance, "cpu")


def no_native_hint(provenance: Provenance) -> str:
    """What to do with a package that has no library for this machine."""
    hint = _compile_hint(provenance, "cpu")
    if any(map(is_for_browsers, provenance.libraries)):
        return f"it runs in a browser: gemma4-serve DIR; or {hint}"
    return hint


def _compile_hint(provenance: Provenance, target: str) -> str:
    """What adds a library of one more target to the package, or makes it again with one.

    Weights that browsers take serve all others, too; the other way round they may be too large.
    """
    there = list(dict.fromkeys(one.target for one in provenance.libraries))
    targets = dict.fromkeys([*there, target])
    again = f"compile the model again for all that it shall run on: --target {','.join(targets)}"
    if target in there or BROWSER not in there:
        return again
    return (
        f"add one to the package: gemma4-compile MODEL --target {target} --only library -o DIR, "
        f"with the options that it was compiled with; or {again}"
    )

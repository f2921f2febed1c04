"""The model libraries of a package, over one set of shards, as `provenance.json` lists them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath as Path

from gemma4_compile import abi
from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.package.fields import PLAIN_NAME, Fields
from gemma4_compile.types import JsonObject

MAX_LIBRARIES = 64
MAX_NAME_LETTERS = 64
MAX_FILE_LETTERS = 255
MAX_FEATURES = 32
MAX_AMOUNT = 2**53 - 1
"""Of a requirement: the largest whole number that a browser reads exactly."""
LIBRARY_ALONE = "library_alone"
"""Of a build: the main library was made without the weights."""
NATIVE, WORDS = "native", "words"
_FEATURES = ("features", "language_features")
_MEMORY = ("weights_bytes", "kv_sliding_bytes", "kv_full_bytes", "activation_bytes")


@dataclass(frozen=True)
class LibraryRecord:
    """One library, and what it needs of a device.

    Attributes
    ----------
    file : in the package
    name : unique in it, by which a user chooses
    target : name of the target
    device : DLPack's name of the device
    limits : name of the target's limits
    activations : form of the vectors that matmuls multiply
    float16 : NATIVE, WORDS where it reads float16 weights without such a feature, or None where the
        recipe has no float16
    requirements : `features` and `language_features` of WebGPU by name, and those of Macs by ours;
        sizes in bytes and counts
    alone : it was made without the weights
    """

    file: str
    name: str
    target: str
    device: str
    limits: str
    activations: str
    float16: str | None
    requirements: Mapping[str, object]
    alone: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Optional features of WebGPU, or of a Mac, that it needs."""
        return _texts(self.requirements, "features")

    @property
    def language_features(self) -> tuple[str, ...]:
        """Features of WGSL that it needs."""
        return _texts(self.requirements, "language_features")

    @property
    def subgroup_size(self) -> int:
        """Threads that the device's smallest subgroup must have; 0 if kernels use none."""
        return self.amount("subgroup_size")

    @property
    def memory_bytes(self) -> int:
        """What it takes of a device with the whole context; 0 where an earlier version made it."""
        return sum(self.amount(part) for part in _MEMORY)

    def amount(self, name: str) -> int:
        """A number of the requirements; 0 where an earlier version did not write it."""
        found = self.requirements.get(name, 0)
        assert isinstance(found, int), "checked when it was read"
        return found

    def to_json(self) -> JsonObject:
        """Its entry."""
        return {
            "file": self.file,
            "name": self.name,
            "target": self.target,
            "device": self.device,
            "limits": self.limits,
            "activations": self.activations,
            "float16": self.float16,
            "requirements": dict(self.requirements),
            **({"alone": True} if self.alone else {}),
        }


def library_file(name: str, suffix: str, *, main: bool) -> str:
    """The name of a library's file: that of the main one is what the stock client is told."""
    return f"{abi.LIBRARY_STEM}{'' if main else f'-{name}'}{suffix}"


def numerics_files(name: str, *, main: bool) -> tuple[str, str]:
    """The files of a library's numerics report, and of its picture."""
    if main:
        return abi.NUMERICS_FILE, abi.NUMERICS_PICTURE
    report, picture = (Path(file) for file in abi.NUMERICS_FILES)
    return f"{report.stem}-{name}{report.suffix}", f"{picture.stem}-{name}{picture.suffix}"


def together(
    kept: Sequence[LibraryRecord], made: Sequence[LibraryRecord], *, main_is_kept: bool
) -> tuple[LibraryRecord, ...]:
    """The libraries of a package of which some were kept, the main one first."""
    return (*kept, *made) if main_is_kept else (*made, *kept)


def read_libraries(
    entries: object, main: str | None, build: Mapping[str, object], files: Container[str]
) -> tuple[LibraryRecord, ...]:
    """The libraries of a package, the main one first.

    Parameters
    ----------
    entries : field `libraries`; None in packages of earlier versions, which have one at most
    main : file of the main library
    build : field `build`
    files : names of the package's files

    Raises
    ------
    ArtifactError
        For a damaged entry, a file that is not listed, a name that is there twice, or a main
        library that is none of them.
    """
    read = Fields({"libraries": entries}, abi.PROVENANCE_FILE)
    if entries is None:
        return () if main is None else (_only(main, build),)
    if not isinstance(entries, list) or len(entries) > MAX_LIBRARIES:
        raise read.damaged("libraries")
    found = [_record(Fields(entry, abi.PROVENANCE_FILE, "libraries"), files) for entry in entries]
    names, paths = {one.name for one in found}, {one.file for one in found}
    is_right = len(names) == len(found) == len(paths)
    if not is_right or (main is None) != (not found) or (main is not None and main not in paths):
        raise read.damaged("libraries")
    return tuple(sorted(found, key=lambda one: one.file != main))


def _record(read: Fields, files: Container[str]) -> LibraryRecord:
    file = _plain(read, "file", MAX_FILE_LETTERS)
    if file not in files:
        raise read.damaged("file")
    names = {
        name: _plain(read, name, MAX_NAME_LETTERS)
        for name in ("name", "target", "device", "limits", "activations")
    }
    float16 = read.optional("float16", str)
    if float16 not in (NATIVE, WORDS, None):
        raise read.damaged("float16")
    return LibraryRecord(
        file,
        **names,
        float16=float16,
        requirements=_requirements(read.get("requirements", dict)),
        alone=read.flag("alone"),
    )


def _plain(read: Fields, field: str, most: int) -> str:
    text: str = read.get(field, str)
    if len(text) > most or not PLAIN_NAME.fullmatch(text):
        raise read.damaged(field)
    return text


def _requirements(values: Mapping[str, object]) -> dict[str, object]:
    """What a device must offer; fields that a later version may add are left to it."""
    read = Fields(values, abi.PROVENANCE_FILE)
    for name in _FEATURES:
        found: list[object] = read.get(name, list) if name in values else []
        if len(found) > MAX_FEATURES or not all(map(_is_feature, found)):
            raise read.damaged(name)
    for name, value in values.items():
        if type(value) is int and not 0 <= value <= MAX_AMOUNT:
            raise read.damaged(name)
        if name.endswith(("_bytes", "_size", "_block", "_buffers")) and type(value) is not int:
            raise read.damaged(name)
    return dict(values)


def _is_feature(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_LETTERS and bool(value)


def _texts(requirements: Mapping[str, object], name: str) -> tuple[str, ...]:
    found = requirements.get(name, [])
    assert isinstance(found, list), "checked when it was read"
    return tuple(map(str, found))


def _only(main: str, build: Mapping[str, object]) -> LibraryRecord:
    """The library of a package of an earlier version, from its build.

    What such a build does not say, or says wrong, is what the first version had: whoever reads a
    build checks it.
    """
    said = Fields(
        {name: value for name, value in build.items() if isinstance(value, str)},
        abi.PROVENANCE_FILE,
    )
    target = said.optional("target", str) or "webgpu"
    limits = said.optional("limits", str) or "default"
    needs = build.get("requirements", {})
    record = LibraryRecord(
        file=main,
        name=limits if is_of_pages(target) else target,
        target=target,
        device=said.optional("device", str) or target,
        limits=limits,
        activations=said.optional("activations", str) or "float",
        float16=NATIVE if "f16" in (said.optional("recipe", str) or "") else None,
        requirements={},
        alone=build.get(LIBRARY_ALONE) is True,
    )
    return replace(record, requirements=_requirements(needs) if isinstance(needs, dict) else {})

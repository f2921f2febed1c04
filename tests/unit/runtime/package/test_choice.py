"""Packages of several libraries on machines with several devices, which are made up."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.device_kinds import TENSOR_OPERATIONS
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.device import metal_launcher, metal_tensors
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library import library_file
from gemma4_compile.runtime.package.choice import (
    candidates,
    choose_library,
    for_pages,
    main_library,
    native_libraries,
    of_library,
    usable_devices,
)
from gemma4_compile.runtime.package.package import Package, read_provenance
from gemma4_compile.runtime.package.tuned import keep_choice
from tests.libraries import ELF_ARM, ELF_X86, MACH_O_ARM, WASM, record, with_libraries

LINUX, MAC, ARM = "Linux x86_64", "macOS arm64", "Linux arm64"
NO_DRIVER = "its driver was not found"
ALL = (
    (record("default", "webgpu", "model.wasm"), WASM),
    (record("int8", "webgpu"), WASM),
    (record("cpu", "cpu"), ELF_X86),
    (record("cuda", "cuda"), ELF_X86),
    (record("metal", "metal"), MACH_O_ARM),
)


class FakeDevice(Device):
    """A device that is described by its name."""

    def describe(self) -> str:
        return f"a {self.name}"


def devices(*there: str) -> Callable[[str], Device]:
    """Opens these devices, and tells of a missing driver for others."""

    def open_device(name: str) -> Device:
        if name not in there:
            raise ArtifactError(NO_DRIVER, hint="install it")
        return FakeDevice(name)

    return open_device


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this process one of another machine."""

    def pretend(machine: str) -> None:
        monkeypatch.setattr(library_file, "this_machine", lambda: machine)
        monkeypatch.setattr("gemma4_compile.runtime.package.choice.this_machine", lambda: machine)

    return pretend


@pytest.fixture
def package(tiny_package: Path, tmp_path: Path) -> Path:
    return with_libraries(tiny_package, tmp_path / "package", ALL)


@pytest.mark.parametrize(
    ("machine", "there", "expected", "told"),
    [
        (LINUX, ("cuda", "cpu"), "cuda", 0),
        (LINUX, ("cpu",), "cpu", 1),
        (MAC, ("metal", "cpu"), "metal", 0),
    ],
)
def test_the_fastest_device_that_is_there_runs_and_the_others_are_told(
    machine: str,
    there: tuple[str, ...],
    expected: str,
    told: int,
    package: Path,
    on: Callable[[str], None],
) -> None:
    on(machine)
    choice = choose_library(package, read_provenance(package), open_device=devices(*there))
    assert choice.library.name == expected
    # Of libraries for other systems nothing is told: nobody expects them to run.
    assert list(choice.notices) == [f"`cuda` is not used: {NO_DRIVER}"] * told


@pytest.mark.parametrize(
    ("machine", "there", "reasons"),
    [
        (LINUX, (), [f"`cuda`: {NO_DRIVER}", f"`cpu`: {NO_DRIVER}", "`metal`: it is for macOS"]),
        (
            MAC,
            ("cpu",),
            [f"`metal`: {NO_DRIVER}", "`cpu`: it is for Linux x86_64", "`cuda`: it is"],
        ),
        (ARM, ("cuda", "cpu"), ["`cuda`: it is for Linux x86_64, and this machine is Linux arm64"]),
    ],
)
def test_where_none_runs_each_has_its_reason(
    machine: str,
    there: tuple[str, ...],
    reasons: list[str],
    package: Path,
    on: Callable[[str], None],
) -> None:
    on(machine)
    with pytest.raises(ArtifactError, match=rf"no library .* runs .*\({machine}\)") as caught:
        choose_library(package, read_provenance(package), open_device=devices(*there))
    for reason in reasons:
        assert reason in str(caught.value)
    assert "--target webgpu,cpu,cuda,metal" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("named", "error", "message", "hint"),
    [
        ("metal", ArtifactError, "it is for macOS arm64", "another library: cuda, cpu"),
        ("cuda", ArtifactError, NO_DRIVER, "leave out --device"),
        ("int8", UsageError, "library `int8` .* is for browsers", "gemma4-serve"),
        ("webgpu", UsageError, "library `default` .* is for browsers", "--device webgpu"),
        (
            "vulkan",
            UsageError,
            r"no library `vulkan` \(it has: default \(webgpu\), int8 \(webgpu\), cpu, cuda,",
            "--target webgpu,cpu,cuda,metal",
        ),
    ],
)
def test_a_named_library_that_cannot_be_is_refused(
    named: str,
    error: type[Exception],
    message: str,
    hint: str,
    package: Path,
    on: Callable[[str], None],
) -> None:
    on(LINUX)
    with pytest.raises(error, match=message) as caught:
        choose_library(package, read_provenance(package), named, devices("cpu"))
    assert hint in str(getattr(caught.value, "hint", ""))


def test_a_library_of_another_machine_is_not_proposed(
    tiny_package: Path, tmp_path: Path, on: Callable[[str], None]
) -> None:
    on(LINUX)
    libraries = [ALL[4], (record("metal-simdgroups", "metal"), MACH_O_ARM)]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    with pytest.raises(ArtifactError, match="it is for macOS arm64") as caught:
        choose_library(folder, read_provenance(folder), "metal-simdgroups", devices("cpu"))
    assert str(caught.value.hint).endswith("--target metal,cpu")


def test_a_package_that_lacks_a_device_says_how_to_compile_it(
    tiny_package: Path, tmp_path: Path
) -> None:
    folder = with_libraries(tiny_package, tmp_path / "p", ALL[:3])
    with pytest.raises(UsageError, match="has no library `cuda`") as caught:
        choose_library(folder, read_provenance(folder), "cuda", devices("cuda", "cpu"))
    assert caught.value.hint is not None
    assert "gemma4-compile MODEL --target cuda --only library -o DIR" in caught.value.hint
    assert caught.value.hint.endswith("--target webgpu,cpu,cuda")
    natives = with_libraries(tiny_package, tmp_path / "natives", ALL[2:3])
    with pytest.raises(UsageError, match="has no library `webgpu`") as caught:
        choose_library(natives, read_provenance(natives), "webgpu", devices("cpu"))
    assert caught.value.hint is not None
    assert "--only" not in caught.value.hint, "its weights may be too large for browsers"


def test_a_package_for_browsers_says_how_it_runs_natively(
    tiny_package: Path, tmp_path: Path
) -> None:
    folder = with_libraries(tiny_package, tmp_path / "p", ALL[:2])
    with pytest.raises(ArtifactError, match="holds no native library") as caught:
        choose_library(folder, read_provenance(folder), open_device=devices("cpu"))
    hint = str(caught.value.hint)
    assert hint.startswith("it runs in a browser: gemma4-serve DIR; or ")
    assert "gemma4-compile MODEL --target cpu --only library -o DIR" in hint


def test_a_name_is_looked_for_before_a_device(tiny_package: Path, tmp_path: Path) -> None:
    libraries = [(record("first", "cpu"), None), (record("cpu", "cpu"), None)]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    provenance = read_provenance(folder)
    for named, expected in ((None, "first"), ("cpu", "cpu"), ("first", "first")):
        assert choose_library(folder, provenance, named).library.name == expected


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_library_that_is_not_whole_is_passed_over(
    damage: str, package: Path, on: Callable[[str], None]
) -> None:
    on(LINUX)
    path = package / "model-cuda.so"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(ELF_X86[:-1] if damage == "cut" else ELF_ARM)
    choice = choose_library(package, read_provenance(package), open_device=devices("cuda", "cpu"))
    assert choice.library.name == "cpu"
    # One that is not there was left out, or is of another kind of machine: that is nothing to tell.
    assert len(choice.notices) == (damage == "cut"), choice.notices
    assert all("`model-cuda.so` is damaged" in notice for notice in choice.notices)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_a_library_s_place_is_not_read(package: Path, on: Callable[[str], None]) -> None:
    on(LINUX)
    (package / "model-cuda.so").unlink()
    os.mkfifo(package / "model-cuda.so")
    choice = choose_library(package, read_provenance(package), open_device=devices("cuda", "cpu"))
    assert choice.library.name == "cpu"


def test_a_package_runs_without_what_is_not_needed_here(tiny_package: Path, tmp_path: Path) -> None:
    libraries = [*ALL[:2], (record("cpu", "cpu"), None), ALL[4]]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    for name in ("model.wasm", "model-int8.wasm"):
        (folder / name).unlink()
    (folder / "model-metal.dylib").write_bytes(b"damaged")
    opened = Package.open(folder)
    assert (opened.library_name, opened.device, opened.notices) == ("cpu", "cpu", ())
    assert opened.library_path == folder / "model-cpu.so"


TENSORS = replace(record("metal-tensors", "metal"), requirements={"features": [TENSOR_OPERATIONS]})
NO_UNITS = "this GPU is of another family"


@pytest.mark.parametrize("lacks", [NO_UNITS, ""])
def test_tensor_operations_are_offered_where_a_mac_has_them(
    lacks: str,
    tiny_package: Path,
    tmp_path: Path,
    on: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(MAC)
    monkeypatch.setattr(metal_tensors, "without_units", lambda *_: lacks)
    monkeypatch.setenv(metal_launcher.SWITCH, "own")
    libraries = [ALL[4], (TENSORS, MACH_O_ARM)]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    provenance, there = read_provenance(folder), devices("metal")
    choice = choose_library(folder, provenance, open_device=there)
    assert (choice.library.name, choice.notices) == ("metal", ())
    usable = usable_devices(list(candidates(folder, provenance, there)))
    if not lacks:
        assert list(usable) == ["metal", "metal-tensors"], "so --tune times both"
        named = choose_library(folder, provenance, "metal-tensors", there)
        assert named.library.name == "metal-tensors"
        monkeypatch.delenv(metal_launcher.SWITCH)
        lacks = f"set {metal_launcher.SWITCH}=own"
    else:
        assert list(usable) == ["metal"]
    with pytest.raises(ArtifactError, match=lacks) as caught:
        choose_library(folder, provenance, "metal-tensors", there)
    assert "choose another library: metal" in str(caught.value.hint)
    (tmp_path / "alone").mkdir()
    alone = with_libraries(tiny_package, tmp_path / "alone" / "p", libraries[1:])
    for name in (None, "metal-tensors"):
        with pytest.raises(ArtifactError, match=f"Metal 4's tensor operations.*{lacks}") as caught:
            choose_library(alone, read_provenance(alone), name, there)
        assert "--target metal,cpu" in str(caught.value.hint)


def test_what_tuning_kept_is_chosen_until_something_changes(
    package: Path, on: Callable[[str], None]
) -> None:
    on(LINUX)
    provenance = read_provenance(package)

    def chosen(**changed: str) -> str:
        both = devices("cuda", "cpu")

        def open_device(name: str) -> Device:
            device = both(name)
            return Device(name) if name in changed else device

        return choose_library(package, provenance, open_device=open_device).library.name

    found: Mapping[str, str] = usable_devices(
        list(candidates(package, provenance, devices("cuda", "cpu")))
    )
    assert found == {"cuda": "a cuda", "cpu": "a cpu"}
    assert chosen() == "cuda"
    keep_choice(package, provenance, found, "cpu")
    assert chosen() == "cpu"
    assert (
        choose_library(package, provenance, "cuda", devices("cuda", "cpu")).library.name == "cuda"
    )
    assert chosen(cpu="another processor") == "cuda"
    keep_choice(package, provenance, found, "gone")
    assert chosen() == "cuda", "a name that the package does not have is no choice"


def test_packages_are_seen_with_some_of_their_libraries(package: Path) -> None:
    provenance = read_provenance(package)
    assert main_library(package) == "default"
    assert [one.name for one in native_libraries(provenance)] == ["cuda", "metal", "cpu"]
    libraries = {one.file for one in provenance.libraries}
    pages = for_pages(provenance)
    assert set(pages.files) & libraries == {"model.wasm", "model-int8.wasm"}
    cuda = of_library(provenance, next(one for one in provenance.libraries if one.name == "cuda"))
    assert set(cuda.files) & libraries == {"model-cuda.so"} == {cuda.library}
    assert set(cuda.files) - libraries == set(pages.files) - libraries


def test_a_package_for_browsers_alone_is_told_as_ever(tiny_package: Path, tmp_path: Path) -> None:
    folder = with_libraries(tiny_package, tmp_path / "p", ALL[:2])
    with pytest.raises(ArtifactError, match="no native library") as caught:
        Package.open(folder)
    assert "gemma4-serve DIR" in str(caught.value.hint)

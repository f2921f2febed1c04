"""Files of libraries: what they are for is in their headers, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.library import library_file
from gemma4_compile.runtime.library.library_file import (
    is_for_another_machine,
    machine_of,
    this_machine,
)
from gemma4_compile.runtime.library.native_library import NativeLibrary
from tests.libraries import ELF_ARM, ELF_X86, MACH_O_ARM, WINDOWS, WINDOWS_ARM, WINDOWS_X86


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (ELF_X86, "Linux x86_64"),
        (ELF_ARM, "Linux arm64"),
        (MACH_O_ARM, "macOS arm64"),
        (WINDOWS, "Windows"),
        (WINDOWS_X86, "Windows x86_64"),
        (WINDOWS_ARM, "Windows arm64"),
        (WINDOWS_X86[:66], "Windows"),
        (WINDOWS_X86.replace(b"PE", b"NE"), "Windows"),
        (ELF_X86[:40], None),
        (b"", None),
        (b"not a library" * 20, None),
    ],
)
def test_a_header_names_system_and_processor(
    content: bytes, expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / "model.so").write_bytes(content)
    assert machine_of(tmp_path / "model.so") == expected


@pytest.mark.parametrize(
    ("system", "processor", "expected"),
    [
        ("linux", "x86_64", "Linux x86_64"),
        ("linux", "aarch64", "Linux arm64"),
        ("darwin", "arm64", "macOS arm64"),
        ("win32", "AMD64", "Windows x86_64"),
    ],
)
def test_processors_have_one_name_on_all_systems(
    system: str, processor: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: processor)
    assert this_machine() == expected
    assert not is_for_another_machine(expected)
    assert not is_for_another_machine(None)
    assert is_for_another_machine("Linux arm64") == (expected != "Linux arm64")


def test_a_real_library_is_of_this_machine(tiny_package: Path) -> None:
    assert machine_of(tiny_package / "model.so") == this_machine()


def test_a_library_of_another_machine_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.so").write_bytes(ELF_X86)
    monkeypatch.setattr(
        "gemma4_compile.runtime.library.native_library.this_machine", lambda: "macOS arm64"
    )
    monkeypatch.setattr(library_file, "this_machine", lambda: "macOS arm64")
    with pytest.raises(
        ArtifactError, match="it is for Linux x86_64, and this machine is macOS arm64"
    ):
        NativeLibrary(tmp_path / "model.so")


def test_a_path_that_tvm_cannot_be_told_of_says_what_to_do(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise OSError(84, "no library from a path with such letters")

    monkeypatch.setattr("gemma4_compile.runtime.library.native_library.path_for_tvm", refuse)
    with pytest.raises(ArtifactError, match="such letters") as refused:
        NativeLibrary(tiny_package / "model.so")
    assert "plain letters" in (refused.value.hint or "")

"""What `gemma4-serve` serves of a package: files for pages, the API, or both."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from gemma4_compile.options.serve import COMMAND
from gemma4_compile.runtime.library import library_file
from gemma4_compile.runtime.package import choice
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.serving_page import served
from tests.libraries import ELF_X86, MACH_O_ARM, WASM, record, with_libraries
from tests.serving import serving


def test_a_package_for_both_is_served_as_files_and_answers(
    tiny_package: Path, tmp_path: Path
) -> None:
    """Libraries that neither a page nor this machine needs may be missing."""
    both = [(record("default", "webgpu"), WASM), (record("cpu", "cpu"), None)]
    metal = record("metal", "metal")
    package = with_libraries(tiny_package, tmp_path / "both", [*both, (metal, MACH_O_ARM)])
    (package / metal.file).unlink()
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<p>chat</p>")
    with serving(package, "--page", page) as address:
        for path, content in (("/", b"<p>chat</p>"), ("/package/model-default.wasm", WASM)):
            with urllib.request.urlopen(address + path) as response:
                assert response.read() == content
        with urllib.request.urlopen(f"{address}/v1/models") as response:
            assert json.load(response)["data"][0]["id"] == "both"


@pytest.mark.parametrize(
    ("targets", "options", "expected"),
    [
        ("webgpu", [], (True, False)),
        ("cpu", [], (False, True)),
        ("webgpu cpu", [], (True, True)),
        ("webgpu cpu", ["--device", "webgpu"], (True, False)),
        ("cpu webgpu", ["--device", "cpu"], (True, True)),
        ("webgpu metal", [], (True, False)),  # on a Mac alone it answers, too
    ],
)
def test_what_is_served_follows_from_libraries_and_device(
    targets: str,
    options: list[str],
    expected: tuple[bool, bool],
    tiny_package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(choice, "this_machine", lambda: "Linux x86_64")
    monkeypatch.setattr(library_file, "this_machine", lambda: "Linux x86_64")
    contents = {"webgpu": WASM, "cpu": ELF_X86, "metal": MACH_O_ARM}
    libraries = [(record(name, name), contents[name]) for name in targets.split()]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    arguments = COMMAND.parse([str(folder), *options])
    assert served(arguments, folder, read_provenance(folder)) == expected
    told = capsys.readouterr().err
    assert ("`metal` does not run here, so there is no API: it is for macOS" in told) == (
        "metal" in targets
    )

"""`chooseLibrary` of gemma4-web on two real devices: what it takes runs, and answers right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.packages import list_files
from tests.web.compiled import BOTH, TINY, Compiler
from tests.web.dawn import VulkanDriver, run_driver

Choose = Callable[[Path, VulkanDriver], dict[str, Any]]


@pytest.fixture
def choose(fast_module: Path, folder: Path) -> Choose:
    def run(package: Path, driver: VulkanDriver) -> dict[str, Any]:
        job = {
            "package": str(package.resolve()),
            "module": str(fast_module),
            "output": str(folder),
        }
        return run_driver("choose.mjs", job, folder, driver.environment(folder))

    return run


@pytest.fixture
def package(compiled: Compiler, folder: Path) -> Path:
    """Two libraries, one without features and one with float16: a copy that a test may change."""
    several = compiled(TINY, "webgpu", "q4f16", libraries=BOTH)
    return Path(shutil.copytree(several, folder / "package"))


def test_lavapipe_measures_what_fits_and_takes_the_fastest(
    package: Path, choose: Choose, lavapipe: VulkanDriver
) -> None:
    told = choose(package, lavapipe)
    choice = told["choice"]
    measured = {each["name"]: each.get("microseconds") for each in choice["measured"]}
    assert set(measured) == {"default", "f16"}
    times = [time for time in measured.values() if time is not None]
    assert len(times) == 2, choice["measured"]
    assert measured[choice["name"]] == min(times)
    assert choice["why"].startswith("the fastest here")


def test_swiftshader_has_no_float16_and_gets_the_other(
    package: Path, choose: Choose, swiftshader: VulkanDriver
) -> None:
    choice = choose(package, swiftshader)["choice"]
    assert choice["name"] == "default"
    assert choice["why"] == "the only one of 2 that fits"


def test_a_library_that_computes_wrong_is_not_taken(
    package: Path, choose: Choose, lavapipe: VulkanDriver
) -> None:
    """Every sum of products of float16's library gets another sign."""
    plant(package, "f16")
    choice = choose(package, lavapipe)["choice"]
    assert choice["name"] == "default"
    (problem,) = (each["problem"] for each in choice["measured"] if each["name"] == "f16")
    assert "computes wrong results" in problem


def plant(package: Path, name: str) -> None:
    """Change a library's kernels without a change of their lengths."""
    file = package / f"model-{name}.wasm"
    data = file.read_bytes()
    begin = data.index(b"@compute")
    changed = data[:begin] + data[begin:].replace(b" * ", b" - ")
    assert changed != data
    file.write_bytes(changed)
    list_files(package)

"""`chooseLibrary` of gemma4-web among all libraries on real devices: what it takes is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.marks import slow_unless
from tests.packages import list_files
from tests.web.compiled import EVERY, TINY, Compiler
from tests.web.dawn import SUBGROUP, VulkanDriver, run_driver

TIE = 1.05  # of choose/contest.ts
LATER = "there was no time left to measure it"

Choose = Callable[..., dict[str, Any]]
FITTING = {
    # lavapipe by the size of its subgroups, of which the largest kernels that fit are worth a try
    4: {"subgroups-4", "int8", "f16", "default"},
    8: {"subgroups-8", "int8", "f16", "default"},
    16: {"subgroups-16", "int8", "f16", "default"},
}


@pytest.fixture
def choose(fast_module: Path, folder: Path) -> Choose:
    def run(package: Path, driver: VulkanDriver, subgroup: int = SUBGROUP) -> dict[str, Any]:
        job = {
            "package": str(package.resolve()),
            "module": str(fast_module),
            "output": str(folder),
        }
        return run_driver("choose.mjs", job, folder, driver.environment(folder, subgroup))

    return run


@pytest.fixture
def package(compiled: Compiler) -> Path:
    return compiled(TINY, "webgpu", "q4f16", libraries=EVERY)


@pytest.fixture
def changed(package: Path, folder: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(package, folder / "package"))


@pytest.mark.parametrize("subgroup", slow_unless(lambda size: size == SUBGROUP, list(FITTING)))
def test_lavapipe_measures_what_fits_and_takes_the_fastest(
    subgroup: int, package: Path, choose: Choose, lavapipe: VulkanDriver
) -> None:
    choice = choose(package, lavapipe, subgroup)["choice"]
    measured = {each["name"]: each.get("microseconds") for each in choice["measured"]}
    assert set(measured) == FITTING[subgroup]
    times = [time for time in measured.values() if time is not None]
    problems = {each["problem"] for each in choice["measured"] if "problem" in each}
    assert problems <= {LATER}, "all are right here; time may be short"
    assert measured[choice["name"]] <= TIE * min(times)


def test_swiftshader_has_no_float16_and_gets_the_other(
    package: Path, choose: Choose, swiftshader: VulkanDriver
) -> None:
    choice = choose(package, swiftshader)["choice"]
    assert choice["name"] == "default"
    assert choice["why"] == f"the only one of {len(EVERY)} that fits"


def test_a_library_that_computes_wrong_is_not_taken(
    changed: Path, choose: Choose, lavapipe: VulkanDriver
) -> None:
    """Every sum of products of float16's library gets another sign."""
    plant(changed, "f16")
    choice = choose(changed, lavapipe)["choice"]
    assert choice["name"] != "f16"
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

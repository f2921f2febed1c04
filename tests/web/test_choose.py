"""`chooseLibrary` of gemma4-web on two real devices: what it takes runs, and answers right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.model_spec.modality import TEXT_ONLY
from gemma4_compile.pipeline import compile_model
from gemma4_compile.request import CompileRequest
from gemma4_compile.targets.libraries import fitting_forms
from tests.web.compiled import SIZES, TINY, Silent
from tests.web.dawn import VulkanDriver, run_driver
from tests.web.joined import described

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


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two libraries over one set of shards: one without features, one with float16."""
    sizes = SIZES[TINY]
    request = CompileRequest(
        model=TINY,
        target="webgpu",
        quant="q4f16",
        output=tmp_path_factory.mktemp("libraries") / "package",
        context_length=sizes.context_length,
        prefill_chunk=sizes.prefill_chunk,
        modalities=TEXT_ONLY,
        libraries=fitting_forms(("default", "f16"), has_float16=True, takes_int8=True),
    )
    compile_model(request, Silent())
    return request.output


@pytest.fixture
def package(compiled_once: Path, folder: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(compiled_once, folder / "package"))


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
    record = package / abi.PROVENANCE_FILE
    provenance = json.loads(record.read_text())
    provenance["files"][file.name] = described(changed)
    record.write_text(json.dumps(provenance))

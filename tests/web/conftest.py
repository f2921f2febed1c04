"""What a machine needs for these tests; a test without it is skipped, and says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.targets.linker import zig
from tests.shared import made_once, shared_folder
from tests.web.compiled import EVERY, TINY, Compiler
from tests.web.cpu_runtime import QUANT, Questions, Runtime, find_questions
from tests.web.dawn import (
    HERE,
    LAVAPIPE,
    LAVAPIPE_PRELOAD,
    SUBGROUP,
    SWIFTSHADER,
    TIMEOUT_S,
    VulkanDriver,
    lavapipe_environment,
)
from tests.web.webllm import find_browser, find_firefox


def _require_node() -> None:
    if shutil.which("node") is None:
        pytest.skip("Node is not installed: it runs the WebGPU drivers (apt-get install nodejs)")
    if not (HERE / "node_modules" / "@mlc-ai").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in tests/web (make setup does)")


def _require_driver(driver: VulkanDriver) -> VulkanDriver:
    _require_node()
    if driver.find() is None:
        pytest.skip(f"{driver.name} is not installed: none of {', '.join(driver.descriptions)}")
    return driver


@pytest.fixture(scope="session")
def lavapipe(lavapipe_passes: Path) -> VulkanDriver:
    del lavapipe_passes
    return _require_driver(LAVAPIPE)


@pytest.fixture(scope="session")
def lavapipe_passes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What lets lavapipe compile kernels faster, named to every process that tests start."""
    _require_driver(LAVAPIPE)
    library = _preloaded("lavapipe_passes", tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LAVAPIPE_PRELOAD, str(library))
        yield library


@pytest.fixture(scope="session")
def swiftshader() -> VulkanDriver:
    return _require_driver(SWIFTSHADER)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium, for pages that compute nothing."""
    _require_node()
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium: put one into PATH or name it in CHROMIUM")
    return found


@pytest.fixture(scope="session")
def browser(
    chromium: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[str]:
    """Chromium; its WebGPU computes on lavapipe where that is installed, else on SwiftShader."""
    with pytest.MonkeyPatch.context() as patch:
        description = LAVAPIPE.find()
        if description is not None and "CHROMIUM_FLAGS" not in os.environ:
            passes = request.getfixturevalue("lavapipe_passes")
            for name, value in lavapipe_environment(SUBGROUP).items():
                patch.setenv(name, value)
            patch.setenv("LAVAPIPE", json.loads(description.read_text())["ICD"]["library_path"])
            library = _preloaded("lavapipe_for_chromium", tmp_path_factory)
            patch.setenv("CHROMIUM_PRELOAD", f"{library}:{passes}")
        yield chromium


@pytest.fixture(scope="session")
def firefox(lavapipe: VulkanDriver) -> str:
    """Firefox as Debian ships it; `lavapipe` is what its WebGPU computes on."""
    found = find_firefox()
    if found is None:
        pytest.skip("no Firefox: put firefox-esr into PATH or name it in FIREFOX")
    return found


def _preloaded(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a file of C that is here as a library to preload, once a run."""

    def make(library: Path) -> None:
        source = str(HERE / f"{name}.c")
        arguments = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), source, "-ldl"]
        zig.run(arguments, library.parent, cache_folder() / "zig")

    return made_once(shared_folder(tmp_path_factory) / f"{name}.so", make)


@pytest.fixture(scope="session")
def fast_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds `gemma4-web`, once a run, and returns the folder of fast.js."""
    _require_node()
    web = HERE.parents[1] / "web"
    if not (web / "node_modules" / "esbuild").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in web (make setup does)")

    def make(done: Path) -> None:
        subprocess.run(["node", "build.mjs"], cwd=web, check=True, timeout=TIMEOUT_S)
        shutil.copytree(web / "dist", done)

    return made_once(shared_folder(tmp_path_factory) / "gemma4-web", make)


@pytest.fixture(scope="session")
def page(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the example page, once a run."""
    source = HERE.parents[1] / "examples" / "web"
    if not (source / "node_modules" / "vite").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in examples/web")

    def make(built: Path) -> None:
        build = ["npm", "run", "--silent", "build", "--", "--outDir", str(built), "--emptyOutDir"]
        subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=TIMEOUT_S)

    return made_once(shared_folder(tmp_path_factory) / "page", make)


@pytest.fixture(scope="session")
def nine_libraries(compiled: Compiler) -> Path:
    """`tiny` in q4f16 with every library for browsers; nobody changes it.

    Users' own, whose host code LLVM works on for longer, is that of test_minimal.py: in `make
    test-exhaustive` with all libraries, else with two.
    """
    return compiled(TINY, "webgpu", "q4f16", libraries=EVERY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For a driver's job and results."""
    return tmp_path


@pytest.fixture(scope="session")
def runtime(compiled: Compiler) -> Runtime:
    """The CPU build of the package that the browser tests load."""
    return Runtime.open(compiled(TINY, "cpu", QUANT))


@pytest.fixture(scope="session")
def questions(runtime: Runtime) -> Questions:
    """Found by trying: `tiny`'s replies depend on its weights."""
    return find_questions(runtime)

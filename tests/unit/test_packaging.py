"""Builds the sdist and, from it, the wheel, and compares their contents with the tracked files."""

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_FOLDERS = ("gemma4_compile", "model_spec", "quantization", "targets")

# What `make wheel` builds and puts there, in place of the true files.
MADE = (
    "gemma4_compile/gemma4_web/choose/options.d.ts",
    "gemma4_compile/gemma4_web/fast.d.ts",
    "gemma4_compile/gemma4_web/fast.js",
    "gemma4_compile/page/assets/index-1a2b.js",
    "gemma4_compile/page/index.html",
    "targets/prebuilt/runtime-wasm32-1a2b/kv_state.o",
    "targets/prebuilt/runtime-wasm32-1a2b/kv_state.o.sha256",
)

pytestmark = pytest.mark.slow  # test_repository.py has the list of packages, without a build
pytest.importorskip("build", reason="the package `build` is not installed (make setup)")


def tracked_files() -> list[str]:
    """Paths of the tracked files that exist, relative to the root, with forward slashes."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to compare with")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@dataclass(frozen=True)
class Built:
    tracked: list[str]
    sdist: list[str]
    wheel: list[str]
    installed: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy of the tracked files and `MADE`: nothing else of the checkout gets in."""
    tracked = tracked_files()
    source = tmp_path_factory.mktemp("source")
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    for name in MADE:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("made")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", str(source)],
        capture_output=True,
        text=True,
        cwd=source.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (source / "dist").glob("*.tar.gz")
    (wheel,) = (source / "dist").glob("*.whl")
    with tarfile.open(archive) as opened:
        sdist = [entry.name.partition("/")[2] for entry in opened if entry.isfile()]
    installed = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as opened_wheel:
        names = opened_wheel.namelist()
        opened_wheel.extractall(installed)
    return Built(tracked, sdist, names, installed)


def installed_name(path: str) -> str:
    return path if path.startswith("gemma4_compile/") else f"gemma4_compile/{path}"


def test_wheel_holds_the_source_folders_and_nothing_else(built: Built) -> None:
    expected = {
        installed_name(name) for name in built.tracked if name.split("/")[0] in SOURCE_FOLDERS
    }
    expected |= set(map(installed_name, MADE))
    found = {name for name in built.wheel if ".dist-info/" not in name and not name.endswith("/")}
    assert found == expected


def test_wheel_carries_the_licence(built: Built) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in built.wheel)


def test_sdist_holds_what_a_build_needs(built: Built) -> None:
    needed = {name for name in built.tracked if name.split("/")[0] in SOURCE_FOLDERS}
    needed |= {"pyproject.toml", "README.md", "LICENSE"}
    assert needed <= set(built.sdist)


def printed_by(program: str, built: Built) -> list[str]:
    """Run a program on the installed wheel; return the words that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(built.installed)},
        cwd=built.installed.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_installed_package_imports_its_folders_from_the_wheel(built: Built) -> None:
    program = (
        "import gemma4_compile, gemma4_compile.model_spec as m, gemma4_compile.tiny as t\n"
        "print(gemma4_compile.__file__, m.__file__, t.__file__, sep='\\n')"
    )
    for line in printed_by(program, built):
        assert Path(line).is_relative_to(built.installed), line


def test_the_installed_server_finds_the_page_and_the_module(built: Built) -> None:
    program = (
        "from gemma4_compile.runtime.server.pages import find_module, find_page\n"
        "print(find_page(), find_module(), sep='\\n')"
    )
    installed = built.installed / "gemma4_compile"
    assert printed_by(program, built) == [str(installed / "page"), str(installed / "gemma4_web")]

"""What `make` asks of a machine before it begins."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gemma4_compile
from gemma4_compile.options import chat as chat_options
from gemma4_compile.options import compile as options
from gemma4_compile.runtime.server import pages
from gemma4_compile.targets.linker import object_cache

ROOT = Path(__file__).parents[2]
OWN_PROGRAMS: dict[str, Callable[[list[str]], Any]] = {
    "gemma4-compile": options.COMMAND.parse,
    "gemma4-chat": chat_options.COMMAND.parse,
}
EXAMPLES = ("examples/web", "examples/web-minimal", "examples/extension")
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make_node(folder: Path, version: str | None) -> subprocess.CompletedProcess[str]:
    """`make node` where Node has this version, or is not there."""
    make = shutil.which("make")
    assert make is not None
    if version is not None:
        program = folder / "node"
        program.write_text(f"#!/bin/sh\necho v{version}\n")
        program.chmod(0o755)
    of_make = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}  # these tests may run below a `make -j`
    others = {name: value for name, value in os.environ.items() if name not in of_make}
    environment = {**others, "PATH": str(folder)}
    return subprocess.run(
        [make, "--no-print-directory", "-C", str(ROOT), "SHELL=/bin/sh", "node"],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("version", ["20.19.0", "20.20.2", "22.12.0", "22.20.1", "23.0.0", "30.1"])
def test_node_that_vite_runs_on_is_taken(version: str, tmp_path: Path) -> None:
    done = make_node(tmp_path, version)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("version", [None, "18.20.8", "20.9.0", "20.18.3", "21.7.3", "22.11.0"])
def test_other_node_is_refused_by_its_version(version: str | None, tmp_path: Path) -> None:
    done = make_node(tmp_path, version)
    assert done.returncode != 0
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("error: the browser parts need Node 20.19 or newer")
    assert first.endswith(f"found: {'none' if version is None else f'v{version}'}")
    assert second.startswith("hint: ")


def test_the_bound_is_that_of_vite() -> None:
    lock = json.loads((ROOT / "examples/web/package-lock.json").read_text("utf-8"))
    expected = "^20.19.0 || >=22.12.0"
    vite = lock["packages"]["node_modules/vite"]
    assert vite["engines"]["node"] == expected, "change `make node`"
    for folder in (*EXAMPLES, "web", "tests/web/bundlers", "tools/lint"):
        for name in ("package.json", "package-lock.json"):
            found = json.loads((ROOT / folder / name).read_text("utf-8"))
            found = found["packages"][""] if name == "package-lock.json" else found
            assert found["engines"]["node"] == expected, f"{folder}/{name}"


def test_the_npm_package_has_the_version_of_the_compiler() -> None:
    package = json.loads((ROOT / "web/package.json").read_text("utf-8"))
    assert package["version"] == gemma4_compile.__version__
    for name in ("README.md", "docs/web.md", "web/README.md"):
        told = re.findall(r"gemma4-web-([\d.]+)\.tgz", (ROOT / name).read_text("utf-8"))
        assert set(told) == {package["version"]}, name


def test_wheel_builds_the_page_and_the_module_into_the_package() -> None:
    """A dry run; tests/unit/package/test_shards.py shows that the wheel takes them from there."""
    make = shutil.which("make")
    assert make is not None
    dry = [make, "--no-print-directory", "-C", str(ROOT), "-n", "wheel"]
    told = subprocess.run(dry, capture_output=True, text=True, check=True).stdout
    steps = [
        "cd examples/web && npm run --silent build",
        "cd web && npm run --silent build",
        f"python tools/prebuild.py targets/{object_cache.PREBUILT.name}",
        f"cp -r examples/web/dist gemma4_compile/{pages._INSTALLED.name}",
        f"cp -r web/dist gemma4_compile/{pages._INSTALLED_MODULE.name}",
        "python -m build",
    ]
    places = [told.index(step) for step in steps]
    assert places == sorted(places)


def test_a_wheel_needs_no_torch() -> None:
    """On a clean machine, what a user needs is installed for it, and the tool that builds."""
    command = ["make", "-n", "-C", str(ROOT), "VENV=/nowhere", "wheel"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "-m build" in done.stdout
    assert "pip install" in done.stdout
    assert "torch" not in done.stdout
    assert "'.[dev]'" not in done.stdout


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to list")
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def is_shell_script(name: str) -> bool:
    with (ROOT / name).open("rb") as file:
        return re.match(rb"#!.*\b(ba|da|z)?sh\b", file.readline()) is not None


def test_lint_reads_every_source_file() -> None:
    """C and shell by name; ruff and Biome read folders, Biome by the endings that it is given."""
    command = ["make", "-n", "-C", str(ROOT), "VENV=/nowhere", "lint"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (native,) = re.findall(r"clang-format --dry-run --Werror (.*)", done.stdout)
    (scripts,) = re.findall(r"shellcheck (.*)", done.stdout)
    files = tracked()
    assert set(native.split()) == {
        name for name in files if re.search(r"\.(c|cc|cpp|cu|h|hpp|m|mm)$", name)
    }
    checked = {
        path.relative_to(ROOT).as_posix() for each in scripts.split() for path in ROOT.glob(each)
    }
    assert checked == {name for name in files if is_shell_script(name)}
    script = re.compile(r"\.([cm]?[jt]sx?)$")
    endings = {found[1] for name in files if (found := script.search(name))}
    includes = re.search(r'"includes": \[(.*)\]', (ROOT / "biome.jsonc").read_text())
    assert includes is not None
    assert set(re.findall(r'"\*\*/\*\.(\w+)"', includes[1])) == endings


def test_types_reads_every_python_file() -> None:
    """mypy gets its files from its settings; the package is one tree of links."""
    command = ["make", "-n", "-C", str(ROOT), "VENV=/nowhere", "types"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "/nowhere/bin/mypy" in done.stdout.splitlines()
    tree = done.stdout[done.stdout.index("ln -s") :]
    package = set(re.findall(r"\.\./\.\./\.\./(\w+)", tree))
    settings = (ROOT / "pyproject.toml").read_text("utf-8").partition("[tool.mypy]")[2]
    listed = re.search(r"^files = \[(.*)\]$", settings, re.MULTILINE)
    assert listed is not None
    folders = {name.split("/")[0] for name in tracked() if name.endswith(".py")}
    assert package < folders
    expected = {"build/tree/gemma4_compile", *(folders - package)}
    assert set(re.findall(r'"([^"]+)"', listed[1])) == expected


def pytest_of(target: str) -> str:
    """The arguments that a target gives to pytest."""
    command = ["make", "-n", "-C", str(ROOT), "VENV=/nowhere", "WORKERS=", "ARGS=", target]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in told.splitlines() if "-m pytest" in line)
    return line.split("-m pytest")[1].strip()


def test_each_test_is_in_all_or_in_exhaustive() -> None:
    assert pytest_of("test-all") == '-m "not exhaustive"'
    assert pytest_of("test-exhaustive") == "-m exhaustive"
    assert pytest_of("test") == '-m "not slow and not exhaustive"'
    quick = '-m "not slow and not package and not exhaustive"'
    assert pytest_of("check") == f"{quick} tests/unit tests/passes tests/smoke"
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands[-1].endswith("make test-all")


def test_workflows_run_nothing_but_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        commands = re.findall(r"run: (.*)", path.read_text())
        assert commands, path.name
        for command in commands:
            program, target, *options = command.split()
            if program in OWN_PROGRAMS or command == "python -m pip install -e .":
                continue  # of hosts.yml: systems without make, see below
            assert (program, target in targets) == ("make", True), f"{path.name}: {command}"
            matrix = r"\$\{\{ matrix\.\w+ \}\}"
            assert re.fullmatch(rf"( ?[A-Z]+=(\w+|{matrix}))*", " ".join(options)), command


def test_every_test_is_of_one_part() -> None:
    text = (ROOT / "Makefile").read_text()
    parts = dict(re.findall(r"^PART_(\w+) := (.*)$", text, re.MULTILINE))
    folders = [folder for part in parts.values() for folder in part.split()]
    tests = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert sorted(folders) == sorted(f"tests/{name}" for name in tests)
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    (named,) = re.findall(r"part: \[(.*)\]", workflow)
    assert named.split(", ") == list(parts)


def test_the_workflow_hosts_runs_commands_that_exist_on_packages_that_it_made() -> None:
    text = (ROOT / ".github" / "workflows" / "hosts.yml").read_text("utf-8")
    for job in re.split(r"^  \w+:$", text, flags=re.MULTILINE)[1:]:
        made: dict[str, str] = {}
        chatted = set()
        for command in re.findall(r"run: (gemma4-.*)", job):
            program, *arguments = shlex.split(command)
            given = OWN_PROGRAMS[program](arguments)
            if program == "gemma4-compile":
                (made[str(given.output)],) = given.target
            else:
                assert str(given.package) in made, command
                chatted.add(made[str(given.package)])
        assert chatted == set(made.values()) - {"webgpu"}
    assert "if: always()" in text
    assert "PYTHONUTF8" not in text  # users have not set it, and it would hide what they meet


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {gemma4_compile.__version__}\n" in text

"""The built page carries the licence of every package that is bundled in it or in its worker."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "examples" / "web"
UNUSED = {"argparse"}  # of a command that comes with markdown-it


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file in a page that is built into a folder of its own."""
    if shutil.which("node") is None or not (PAGE / "node_modules" / "vite").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in examples/web")
    folder = tmp_path_factory.mktemp("page")
    vite = PAGE / "node_modules" / "vite" / "bin" / "vite.js"
    build = ["node", str(vite), "build", "--outDir", str(folder), "--emptyOutDir"]
    done = subprocess.run(build, cwd=PAGE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "licenses.txt").read_text("utf-8")


def test_every_package_that_the_page_depends_on_is_there(text: str) -> None:
    lock = json.loads((PAGE / "package-lock.json").read_text("utf-8"))["packages"]
    used = {
        path.removeprefix("node_modules/"): entry["version"]
        for path, entry in lock.items()
        if path and not entry.get("dev")
    }
    listed = dict(
        line.removeprefix("- ").split(" ")[:2]
        for line in text.splitlines()
        if line.startswith("- ") and line.endswith(")")
    )
    assert listed == {name: version for name, version in used.items() if name not in UNUSED}


def test_texts_are_the_packages_own(text: str) -> None:
    words = " ".join(text.split())
    for name, file in (("@mlc-ai/web-llm", "LICENSE"), ("loglevel", "LICENSE-MIT")):
        own = (PAGE / "node_modules" / name / file).read_text("utf-8")
        assert " ".join(own.split()) in words

"""The file that `npm pack` makes of `web/`, unpacked: what `npm install` of it gives a user."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from tests.child import run_within
from tests.shared import made_once, shared_folder
from tests.web.dawn import TIMEOUT_S

WEB = Path(__file__).parents[2] / "web"


def packed_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of gemma4-web, packed and unpacked once a run, or skip for want of npm."""
    if shutil.which("npm") is None:
        pytest.skip("Node is not installed (apt-get install nodejs)")
    if not (WEB / "node_modules" / "vitest").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in web")
    return made_once(shared_folder(tmp_path_factory) / "packed", _pack) / "package"


def _pack(root: Path) -> None:
    """In a copy, for it builds, and others may use `web/dist`."""
    root.mkdir()
    made = shutil.ignore_patterns("node_modules", "dist", "LICENSE", "*.tgz")
    shutil.copytree(WEB, root / "web", ignore=made)
    shutil.copy(WEB.parent / "LICENSE", root / "LICENSE")
    (root / "web" / "node_modules").symlink_to(WEB / "node_modules")
    pack = ["npm", "pack", "--silent", "--pack-destination", str(root)]
    done = run_within(TIMEOUT_S, pack, cwd=root / "web")
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = root.glob("gemma4-web-*.tgz")
    with tarfile.open(archive) as opened:
        opened.extractall(root)

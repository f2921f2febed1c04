"""requirements/ci.txt: every version has hashes, and is one that pyproject.toml allows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "ci.txt"
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "extra": ""}


def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes by name."""
    text = LOCK.read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("==")
            version, *hashes = rest.split()
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", item) for item in hashes), line
            found[re.sub(r"[-_.]+", "-", name).lower()] = (version, len(hashes))
    return found


def test_every_version_has_hashes() -> None:
    found = locked()
    assert len(found) > 40
    assert all(count > 0 for _, count in found.values())


def test_versions_are_those_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(item for extra in extras for item in extra)]
    found = locked()
    for requirement in map(Requirement, wanted):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        is_wanted = requirement.marker is None or requirement.marker.evaluate(LINUX)
        if name in found and is_wanted:  # what is new is not locked before the next `make lock`
            version = found[name][0]
            assert requirement.specifier.contains(version), f"{name} {version}: run `make lock`"
    assert {"apache-tvm", "apache-tvm-ffi", "ziglang", "numpy", "transformers"} <= set(found)

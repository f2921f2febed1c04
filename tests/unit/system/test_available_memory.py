"""Memory that is left, of the machine and of control groups, in a file system made for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gemma4_compile.system.available_memory import available_bytes

MACHINE = 900 * 1024
NO_LIMIT = "9223372036854771712"  # as version 1 writes it
GROUPS = "sys/fs/cgroup"


def system(root: Path, files: dict[str, str]) -> Path:
    meminfo = "MemTotal: 9999 kB\nMemFree: 1 kB\nMemAvailable:     900 kB\nBuffers:\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def second(folder: str, most: str, used: int, stat: str = "") -> dict[str, str]:
    place = f"{GROUPS}/{folder}"
    values = {"max": most, "current": str(used), "stat": stat}
    return {f"{place}memory.{name}": f"{text}\n" for name, text in values.items()}


def first(folder: str, most: str, used: int, stat: str = "") -> dict[str, str]:
    place = f"{GROUPS}/memory/{folder}"
    values = {"limit_in_bytes": most, "usage_in_bytes": str(used), "stat": stat}
    return {f"{place}memory.{name}": f"{text}\n" for name, text in values.items()}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/a/b\n"}, MACHINE),
        ({"proc/self/cgroup": "0::/\n", **second("", "5000", 3000)}, 2000),
        ({"proc/self/cgroup": "0::/a/b\n", **second("a/b/", "5000", 3000)}, 2000),
        # A group around it allows less, or has no limit.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                **second("a/b/", "5000", 3000),
                **second("a/", "4000", 3500),
                **second("", "max", 3500),
            },
            500,
        ),
        ({"proc/self/cgroup": "0::/a\n", **second("a/", "max", 3000)}, MACHINE),
        ({"proc/self/cgroup": "0::/a\n", **second("a/", "9000000", 3000)}, MACHINE),
        # Cached files make room; more than is used they cannot be.
        (
            {
                "proc/self/cgroup": "0::/\n",
                **second("", "5000", 3000, "anon 9\nactive_file 300\ninactive_file 1000\nfile 7"),
            },
            3300,
        ),
        (
            {"proc/self/cgroup": "0::/\n", **second("", "5000", 3000, "inactive_file 9000")},
            5000,
        ),
        ({"proc/self/cgroup": "0::/\n", **second("", "5000", 6000)}, 0),
        # Version 1, beside a second one that has no memory; in a container the path is not there.
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/x/y\n3:cpuset:/z\n0::/\n",
                **first("x/y/", "7000", 3000, "inactive_file 1\ntotal_inactive_file 500"),
                **first("", NO_LIMIT, 3000),
            },
            4500,
        ),
        ({"proc/self/cgroup": "4:memory:/docker/123\n", **first("", "7000", 3000)}, 4000),
        ({"proc/self/cgroup": "4:cpu:/\n", **first("", "7000", 3000)}, MACHINE),
        # What nobody writes.
        ({"proc/self/cgroup": "\nx\n0::\n:::\n", **second("", "5 000", 3000)}, MACHINE),
        ({"proc/self/cgroup": "0::/../..\n", **second("", "-1", 3000)}, MACHINE),
    ],
)
def test_the_least_of_machine_and_groups(tmp_path: Path, files: dict[str, str], left: int) -> None:
    assert available_bytes(system(tmp_path, files)) == left


def test_a_system_without_such_files_does_not_tell(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_bytes(b"\xff\xfe")
    assert available_bytes(tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_this_machine_tells() -> None:
    found = available_bytes()
    assert found is not None
    assert 0 < found < 1 << 50

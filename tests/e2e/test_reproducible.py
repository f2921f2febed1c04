"""Two runs as on two machines: other places, times, hash seeds, locales; the same sha256 of all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_compile.package.artifacts import Provenance, read_artifact
from tests import models

ROOT = Path(__file__).parents[2]
SMALL = {
    **models.MOE_LIKE,
    "num_hidden_layers": 2,
    "layer_types": models.MOE_LIKE["layer_types"][:2],
}
PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from gemma4_compile.compile import library_processes
library_processes.FEWEST = 1  # two processes for three libraries, where there are two cores
from gemma4_compile.cli.compile import main
sys.exit(main(sys.argv[1:]))
"""
ENVIRONMENTS = {
    "first": {
        "PYTHONHASHSEED": "1",
        "TZ": "UTC",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "OPENBLAS_NUM_THREADS": "2",
    },
    "second": {
        "PYTHONHASHSEED": "271828",
        "TZ": "Pacific/Auckland",
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "40",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TVM_NUM_THREADS": "1",
    },
}
# The same code makes each of the nine: one of every kind of kernels.
LIBRARIES = {"cpu": [], "webgpu": ["--libraries", "default,int8,subgroups-4"]}
CPUS = {"first": None, "second": {0}}  # the second run has one core


def compile_in(folder: Path, model: Path, target: str, name: str) -> subprocess.Popen[bytes]:
    """Start a run of its own on its own copy of the checkpoint."""
    place = folder / ("a" if name == "first" else "elsewhere/deep/down")
    place.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model, place / f"model-{target}")  # with the times of today
    arguments = [f"model-{target}", "--target", target, "--quant", "q4f16", "--context", "64"]
    arguments += LIBRARIES[target]

    def prepare() -> None:
        os.umask(0o022 if name == "first" else 0o077)
        cpus = CPUS[name]
        if cpus is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cpus & os.sched_getaffinity(0) or os.sched_getaffinity(0))

    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(ROOT), *arguments, "-o", f"out-{target}"],
        cwd=place,
        env={**os.environ, **ENVIRONMENTS[name]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=prepare,
    )


def hashes(package: Path) -> dict[str, tuple[str, int]]:
    """The sha256 and the permissions of every file."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode)
        for path in sorted(package.iterdir())
    }


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "webgpu"])
def test_every_file_has_the_same_hash(target: str, tmp_path: Path) -> None:
    model = models.write_checkpoint(tmp_path / "model", SMALL, dtype="bfloat16").path
    runs = [compile_in(tmp_path, model, target, name) for name in ENVIRONMENTS]
    for run in runs:
        output, _ = run.communicate(timeout=300)
        assert run.returncode == 0, output.decode()
    first = hashes(tmp_path / "a" / f"out-{target}")
    second = hashes(tmp_path / "elsewhere" / "deep" / "down" / f"out-{target}")
    assert first == second
    assert len(first) >= 8
    provenance = tmp_path / "a" / f"out-{target}" / "provenance.json"
    assert str(tmp_path) not in provenance.read_text()
    versions = Provenance.from_json(read_artifact(provenance)).build["versions"]
    assert {"gemma4-compile", "apache-tvm", "apache-tvm-ffi", "ziglang", "numpy"} < set(versions)
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))

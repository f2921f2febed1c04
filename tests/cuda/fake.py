"""A CUDA without a GPU: builds it, makes a package for it, and runs code on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.targets.linker import ptx, zig
from tests import models
from tests.packages import compile_small

SOURCE = Path(__file__).with_name("fake_cuda.c")
ROOT = Path(__file__).parents[2]
RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"
KERNEL = re.compile(
    r'^extern "C" __global__ void (?:__launch_bounds__\([\d, ]+\) )?(?!__)(\w+)\((.*?)\)', re.M
)
CONTEXT_LENGTH = 64


def _link(arguments: list[str], folder: Path) -> None:
    zig_cache = str(cache_folder() / "zig")
    environment = {"ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache}
    command = [str(zig.find_zig()), "cc", "-shared", "-fPIC", "-O1", "-g0", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**environment, **os.environ}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@cache
def libraries() -> Path:
    """Folder of the runtime and the driver; the second is empty and needs the first."""
    folder = Path(tempfile.mkdtemp(prefix="gemma4-fake-cuda-"))
    (folder / "versions").write_text(f"{RUNTIME} {{ global: *; }};\n")
    options = [f"-Wl,-soname,{RUNTIME}", "-Wl,--version-script=versions", "-Wall", "-Werror"]
    _link([str(SOURCE), "-o", RUNTIME, *options], folder)
    (folder / "driver.c").write_text("int fake_driver;\n")
    options = ["-Wl,--no-as-needed", f"-Wl,-soname,{DRIVER}", "-Wl,-rpath,$ORIGIN"]
    _link([*options, "driver.c", RUNTIME, "-o", DRIVER], folder)
    return folder


def ptx_of(source: str) -> bytes:
    """What the fake driver reads of PTX: the kernels' names, and how many parameters they take.

    Behind them, that a kernel waits for the end of the one before it.
    """
    waiting = set(_waiting(source))
    entries = [
        f".visible .entry {name}({', '.join(['.param'] * len(parameters.split(',')))})"
        + (" waits" if name in waiting else "")
        for name, parameters in KERNEL.findall(source)
    ]
    assert len(entries) == source.count("__global__ void"), "a kernel in another form"
    return "\n".join([".version 9.0", *entries]).encode()


def _waiting(source: str) -> Iterator[str]:
    """The kernels that wait for the end of the one before them."""
    name = ""
    for line in source.splitlines():
        if (head := KERNEL.match(line)) and line.endswith("{"):
            name = head[1]
        if "griddepcontrol.wait" in line:
            yield name


def replace_compiler(patch: pytest.MonkeyPatch) -> None:
    """Let PTX be what the fake driver reads."""
    patch.setattr(ptx, "find_compiler", lambda: None)
    patch.setattr(ptx, "compile_ptx", lambda source, *_: ptx_of(source))


def compile_tiny(folder: Path, drafter: str | None = None) -> Path:
    """`tiny` for `cuda`, without a CUDA compiler; return the package."""
    with pytest.MonkeyPatch.context() as patch:
        replace_compiler(patch)
        request = CompileRequest(
            "tiny", "cuda", "q4f16", folder, context_length=CONTEXT_LENGTH, drafter=drafter
        )
        compile_small(request)
    return folder


def make_mixture(folder: Path, target: str = "cuda") -> Path:
    """A small mixture of experts, and its package, for `cuda` made without a CUDA compiler."""
    checkpoint = models.write_checkpoint(folder / "checkpoint", models.MOE_LIKE)
    with pytest.MonkeyPatch.context() as patch:
        replace_compiler(patch)
        source, package = str(checkpoint.path), folder / "package"
        request = CompileRequest(source, target, "q4f16", package, context_length=CONTEXT_LENGTH)
        compile_small(request)
    return folder


@cache
def _forks() -> subprocess.Popen[str]:
    """Start forks.py with the fake CUDA; it ends with this process, which holds its input."""
    folder = libraries()
    preload = " ".join(str(folder / name) for name in (RUNTIME, DRIVER))
    # One thread each, so that there is none before a fork.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cuda.forks"],
        cwd=ROOT,
        env={**os.environ, **threads, "LD_PRELOAD": preload},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(case: str, package: Path, *arguments: str, **environment: str) -> str:
    """Run a function of cases.py in a process with the fake CUDA; return what it logged."""
    forks = _forks()
    assert forks.stdin is not None
    assert forks.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        job = {
            "case": case,
            "package": str(package),
            "arguments": arguments,
            "environment": environment,
            "log": str(log),
        }
        print(json.dumps(job), file=forks.stdin, flush=True)
        status = forks.stdout.readline().strip()
        said = log.read_text() if log.exists() else ""
    assert status == "0", f"{case}: {status}\n{said}"
    return said

"""Runs a package on Dawn in Node (`dawn_driver.mjs`) and hands its numbers to a test."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.child import run_within

HERE = Path(__file__).parent
TIMEOUT_S = 540  # of a driver: below the limit of a test (pyproject.toml), which says less

# Threads, unless a test asks lavapipe for 8 or 16: SwiftShader has 4, and so lavapipe compiles a
# kernel with barriers in a third of the time that it takes for 8.
SUBGROUP = 4
WORD_BITS = 32
LAVAPIPE_PRELOAD = "LAVAPIPE_PRELOAD"
"""The environment's name of a library to preload where lavapipe computes (`lavapipe_passes.c`)."""

Float32Array = NDArray[np.float32]
Step = Mapping[str, Any]


def lavapipe_environment(subgroup: int, optimised: bool = True) -> dict[str, str]:
    """In which lavapipe has subgroups of so many threads.

    Mesa keeps compiled shaders by their text alone: one that was compiled for subgroups of 4 is
    taken for 8, and answers as if it had 4. So each size has a folder of its own, and so have
    shaders whose instructions LLVM does not optimise: of a small model it compiles them in two
    thirds of the time, and a token takes half as long again, which pays for some hundreds.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = f"lavapipe-subgroups-{subgroup}" + ("" if optimised else "-plain")
    return {
        "LP_NATIVE_VECTOR_WIDTH": str(subgroup * WORD_BITS),
        "MESA_SHADER_CACHE_DIR": str(cache / kept),
        "LAVAPIPE_EFFORT": "1" if optimised else "0",  # lavapipe_passes.c
    }


@dataclass(frozen=True)
class VulkanDriver:
    """A software Vulkan driver: where its description may lie, and what it can do."""

    name: str
    descriptions: tuple[str, ...]
    has_f16: bool

    def find(self) -> Path | None:
        return next((Path(path) for path in self.descriptions if Path(path).is_file()), None)

    def environment(
        self, folder: Path, subgroup: int = SUBGROUP, optimised: bool = True
    ) -> dict[str, str]:
        """In which Dawn finds this driver and no other; the rest is lavapipe's."""
        description = self.find()
        assert description is not None, f"{self.name} is not installed"
        preloaded = os.environ.get(LAVAPIPE_PRELOAD)
        return {
            **os.environ,
            **({"LD_PRELOAD": preloaded} if preloaded else {}),
            "VK_ICD_FILENAMES": str(description),
            "VK_DRIVER_FILES": str(description),
            **lavapipe_environment(subgroup, optimised),
            "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", str(folder)),
        }


LAVAPIPE = VulkanDriver(
    "lavapipe",
    (
        "/usr/share/vulkan/icd.d/lvp_icd.json",
        "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json",
        "/usr/share/vulkan/icd.d/lvp_icd.aarch64.json",
    ),
    has_f16=True,
)
SWIFTSHADER = VulkanDriver(
    "SwiftShader",
    (
        "/usr/lib/chromium/vk_swiftshader_icd.json",
        "/opt/google/chrome/vk_swiftshader_icd.json",
    ),
    has_f16=False,
)


@dataclass(frozen=True)
class DawnRun:
    """What came back: one entry per step, and the folder with the saved logits."""

    device: Mapping[str, Any]
    prefill_chunk_size: int
    steps: tuple[Mapping[str, Any], ...]
    folder: Path

    def logits(self, name: str) -> Float32Array:
        return np.fromfile(self.folder / f"{name}.f32", dtype=np.float32)


def run_on_dawn(
    package: Path,
    steps: Sequence[Step],
    folder: Path,
    driver: VulkanDriver,
    *,
    context_length: int | None = None,
    subgroup: int = SUBGROUP,
    library: str | None = None,
    emulated: int = 0,
    optimised: bool = True,
) -> DawnRun:
    """Run steps (see `dawn_driver.mjs`) on a package; fail with the whole story if one goes wrong.

    Parameters
    ----------
    package : output folder of a compilation for webgpu
    steps : what to do, in order
    folder : for the job and its results; logits that steps read lie there as NAME.f32
    driver : the Vulkan driver that Dawn shall use
    context_length : positions of the KV state; the package's context window if None
    subgroup : threads of lavapipe's subgroups
    library : file of one of several libraries; None for a package's only one
    emulated : threads of subgroups that the device does not have (`subgroups.mjs`); 0 for its own
    optimised : as of `lavapipe_environment`; those of `tiny` are shared with long conversations
    """
    config = json.loads((package / "mlc-chat-config.json").read_text())
    job = {
        "package": str(package.resolve()),
        "library": library or library_of(package),
        "contextLength": context_length or config["context_window_size"],
        "output": str(folder.resolve()),
        "steps": list(steps),
        "emulated": emulated,
    }
    environment = driver.environment(folder, subgroup, optimised)
    result = run_driver("dawn_driver.mjs", job, folder, environment)
    return DawnRun(result["device"], result["prefillChunkSize"], tuple(result["results"]), folder)


def library_of(package: Path) -> str:
    """Return the name of the file of the package's main library: the one for every device."""
    provenance = json.loads((package / "provenance.json").read_text())
    return str(provenance["library"])


def run_node(script: Path, *args: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A script in Node; what it printed, whatever its status."""
    command = ["node", str(script), *args]
    return run_within(TIMEOUT_S, command, env=dict(env))


def run_driver(
    script: str, job: Mapping[str, Any], folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run a Node driver on a job; return its result.json."""
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    done = run_node(HERE / script, str(path), env=environment)
    told = json.loads(result.read_text()) if result.is_file() else {}
    if done.returncode != 0:
        story = [told.get("stack") or told.get("error", "no result"), *told.get("errors", [])]
        story += [*told.get("problems", []), *told.get("log", [])[-20:], done.stderr[-2000:]]
        raise AssertionError(f"{script} failed:\n" + "\n".join(str(part) for part in story))
    loaded: dict[str, Any] = told
    return loaded

"""Runs a list of steps on a package: in this process, or on WebGPU through Dawn in Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.package.artifacts import ChatConfig, Provenance, read_artifact
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.media_prompt import Prompt, Tokens
from gemma4_compile.runtime.library.native_library import Forward
from gemma4_compile.runtime.library.steps import PlainSteps
from gemma4_compile.runtime.package.choice import is_for_browsers, main_library
from gemma4_compile.system.files import scratch_folder
from gemma4_compile.system.log_lines import process_noted
from gemma4_compile.types import JsonObject

Float32Array = npt.NDArray[np.float32]

DRIVER = Path(__file__).parent / "dawn.mjs"
NODE_PACKAGES = ("webgpu", "@mlc-ai/web-runtime")
INSTALL = "npm install webgpu@0.6.2 @mlc-ai/web-runtime@0.27.0-dev0"
_RESULT_PREFIX = 2  # a forward returns logits and state, then what a probe adds


@dataclass(frozen=True)
class Step:
    """Add tokens and look at what follows the last of them.

    Attributes
    ----------
    ids : a `Prompt` where there are media among them
    clear : forget what came before
    chunk : tokens of one prefill, None for as many as the library takes; 0 decodes them one by one
    follow : decode the most probable token after the step before; `ids` are empty then
    """

    ids: Tokens
    clear: bool = False
    chunk: int | None = None
    follow: bool = False


@dataclass(frozen=True)
class Embed:
    """Look at the rows of a picture or a sound."""

    medium: Picture | Sound


Job = Step | Embed


@dataclass(frozen=True)
class Outcome:
    """Result of a step.

    Attributes
    ----------
    logits : (vocab_size,) after it; empty of an `Embed`
    hidden : of a probe the residual streams (layers, width)
    rows : of an `Embed`, (rows, hidden_size)
    """

    logits: Float32Array
    hidden: Float32Array | None
    rows: Float32Array | None = None

    @property
    def token(self) -> int:
        """The most probable token."""
        return int(self.logits.argmax())

    @classmethod
    def of_rows(cls, rows: Float32Array) -> Outcome:
        """Result of an `Embed`."""
        return cls(np.empty(0, np.float32), None, rows)


Run = Callable[[Path, Sequence[Job]], list[Outcome]]
"""Runs steps on a package, and on its twin with probes, whose library has the same name."""


class _Recorded:
    """A forward function that keeps what a probe returns besides logits and state."""

    def __init__(self, function: Forward, device: Device) -> None:
        self._function, self._device = function, device
        self.hidden: Float32Array | None = None

    def __call__(self, *arguments: tvm_ffi.Object) -> tvm_ffi.Array[Any]:
        result = self._function(*arguments)
        probes = [result[index] for index in range(_RESULT_PREFIX, len(result))]
        layers = [self._device.read(probe).reshape(-1) for probe in probes]
        self.hidden = np.stack(layers) if layers else None
        return result


def run_here(directory: Path, steps: Sequence[Job], library: str | None = None) -> list[Outcome]:
    """Run steps on a package's library for this machine; errors as those of `Engine`.

    Parameters
    ----------
    library : its name; None for the main one
    """
    # What a probe returns is read after each step; of a drafter it knows nothing.
    named = library or main_library(directory)
    engine = Engine.open(directory, graphs=False, drafts=0, device=named)
    runner = engine.runner
    prefill = runner.prefill = _Recorded(runner.prefill, engine.device)
    plain = runner.steps
    assert isinstance(plain, PlainSteps), "without graphs"
    decode = plain._decode = _Recorded(plain._decode, engine.device)
    outcomes: list[Outcome] = []
    for step in steps:
        if isinstance(step, Embed):
            outcomes.append(Outcome.of_rows(runner.rows_of(step.medium)))
            continue
        if step.clear:
            engine.clear()
        prompt = Prompt([outcomes[-1].token]) if step.follow else Prompt.of(step.ids)
        if step.follow or step.chunk == 0:
            for token in prompt.ids:
                logits, seen = engine.decode(token), decode.hidden
        else:
            size = step.chunk or len(prompt)
            for begin in range(0, len(prompt), size):
                logits = engine.prefill(prompt.part(begin, min(begin + size, len(prompt))))
            seen = prefill.hidden
        outcomes.append(Outcome(logits, seen))
    return outcomes


def find_node_modules(given: Path | None) -> Path:
    """The folder that holds the Node packages that run WebGPU.

    Raises
    ------
    UsageError
        If Node is not installed, or the packages are not there.
    """
    if shutil.which("node") is None:
        raise UsageError(
            "a package for `webgpu` is verified on WebGPU in Node, and there is no `node`",
            hint="install Node 20 or newer, then the packages: " + INSTALL,
        )
    folder = (given or Path("node_modules")).resolve()
    missing = [name for name in NODE_PACKAGES if not (folder / name).is_dir()]
    if missing:
        raise UsageError(
            f"a package for `webgpu` is verified on WebGPU in Node: `{folder}` lacks "
            f"{' and '.join(missing)}",
            hint=f"run `{INSTALL}`, and name its folder with --node-modules",
        )
    return folder


@contextmanager
def on_dawn(
    directory: Path,
    node_modules: Path,
    describe: Callable[[Path], Mapping[str, object]],
    library: str | None = None,
) -> Iterator[tuple[Path, JsonObject]]:
    """Run a job on a `webgpu` package; yields the folder with its results, and what it wrote.

    Which driver Dawn takes is the environment's choice (VK_ICD_FILENAMES).

    Parameters
    ----------
    describe : makes what the driver is asked for, whose files go into the folder that it is given
    library : its name; None for the main one

    Raises
    ------
    ArtifactError
        If the package does not run there; the message gives the reason.
    """
    chat = ChatConfig.from_json(read_artifact(directory / abi.CHAT_CONFIG_FILE))
    libraries = Provenance.from_json(read_artifact(directory / abi.PROVENANCE_FILE)).libraries
    (chosen,) = [one for one in libraries if one.name == library] or libraries[:1]
    others = [one.name for one in libraries if one != chosen and is_for_browsers(one)]
    with scratch_folder(prefix="gemma4-verify-") as folder:
        job = {
            "package": str(directory.resolve()),
            "library": chosen.file,
            "requirements": dict(chosen.requirements),
            "contextLength": chat.context_window_size,
            "nodeModules": str(node_modules),
            "output": folder,
            "steps": [],
            **describe(Path(folder)),
        }
        path = Path(folder, "job.json")
        path.write_text(json.dumps(job), "utf-8", newline="\n")
        environment = {"XDG_RUNTIME_DIR": folder, **os.environ}  # Vulkan's loader asks for one
        command = ["node", str(DRIVER), str(path)]
        with process_noted("node, which runs the package"):
            done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
        result = Path(folder, "result.json")
        written = json.loads(result.read_text("utf-8")) if result.is_file() else {}
        if done.returncode != 0:
            reason = written.get("error") or done.stderr[-500:] or "Node ended without a word"
            raise ArtifactError(
                f"the package does not run on WebGPU here: {reason}",
                hint=_hint(others),
            )
        yield Path(folder), written


def _hint(others: Sequence[str]) -> str:
    if not others:
        return "try another adapter, or compile without --limits and --activations"
    return f"try another adapter, or another library with --library: {', '.join(others)}"


def run_on_dawn(
    directory: Path, steps: Sequence[Job], node_modules: Path, library: str | None = None
) -> tuple[list[Outcome], str]:
    """Run steps on a `webgpu` package; returns what came out, and the device's name.

    Errors as those of `on_dawn`.
    """

    def describe(folder: Path) -> Mapping[str, object]:
        return {"steps": [_described(step, folder) for step in steps]}

    with on_dawn(directory, node_modules, describe, library) as (folder, written):
        outcomes = [
            _outcome(folder, index, step, layers)
            for index, (step, layers) in enumerate(zip(steps, written["layers"], strict=True))
        ]
    return outcomes, str(written["device"])


def _described(step: Job, folder: Path) -> dict[str, object]:
    """A step as the driver reads it; pixels and samples are files in `folder`."""
    if isinstance(step, Embed):
        return {"embed": _written(step.medium, folder)}
    values = {"clear": step.clear, "chunk": step.chunk, "follow": step.follow}
    prompt = Prompt.of(step.ids)
    runs = [
        {
            **{"start": run.start, "count": run.count, "first": run.first},
            **{"modality": run.modality, "medium": _written(run.medium, folder)},
        }
        for run in prompt.runs
    ]
    return {**values, "ids": prompt.ids, "runs": runs}


def _written(medium: Picture | Sound, folder: Path) -> dict[str, object]:
    """Name and sizes of a medium, whose values are written once."""
    name = medium.digest.hex()
    if isinstance(medium, Sound):
        arrays = {"values": medium.samples.astype("<f4")}
        kind = "audio"
    else:
        positions = medium.positions.astype("<i4")
        arrays = {"values": medium.pixels.astype("<f4"), "positions": positions}
        kind = "image"
    for part, array in arrays.items():
        path = folder / f"{name}.{part}"
        if not path.exists():
            path.write_bytes(np.ascontiguousarray(array).tobytes())
    return {"kind": kind, "name": name, "shape": list(arrays["values"].shape)}


def _outcome(folder: Path, index: int, step: Job, layers: int) -> Outcome:
    values = np.fromfile(folder / f"{index}.f32", np.float32)
    if isinstance(step, Embed):
        return Outcome.of_rows(values.reshape(layers, -1))
    if not layers:
        return Outcome(values, None)
    hidden = np.fromfile(folder / f"{index}.layers.f32", np.float32)
    return Outcome(values, hidden.reshape(layers, -1))


def runner_for(
    device: str, node_modules: Path | None, library: str | None = None
) -> tuple[Run, list[str]]:
    """Runner of steps on packages for a device, and a list that gets the device's name.

    Parameters
    ----------
    library : name of the library that runs; None for the main one

    Raises
    ------
    UsageError
        If the device needs Node or Node packages that are not there.
    ArtifactError
        If this machine has no such device.
    """
    devices: list[str] = []
    if not is_of_pages(device):
        Device.open(device)  # a missing one is said before anything long begins
        return run_here if library is None else partial(run_here, library=library), devices
    folder = find_node_modules(node_modules)

    def run(directory: Path, steps: Sequence[Job]) -> list[Outcome]:
        outcomes, name = run_on_dawn(directory, steps, folder, library)
        devices[:] = [name]
        return outcomes

    return run, devices

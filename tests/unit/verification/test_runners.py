"""What is missing for WebGPU is named before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.device_kinds import CPU
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import AudioSettings, ImageSettings
from gemma4_compile.runtime.engine.media_prompt import Prompt, Rows
from gemma4_compile.verification.runners import (
    INSTALL,
    Embed,
    Step,
    _described,
    find_node_modules,
    run_here,
    runner_for,
)

ROOT = Path(__file__).parents[3]


def test_a_missing_node_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no `node`") as caught:
        runner_for("webgpu", None)
    assert INSTALL in str(caught.value.hint)


def test_missing_node_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\n")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "modules" / "webgpu").mkdir(parents=True)
    with pytest.raises(UsageError, match="lacks @mlc-ai/web-runtime"):
        find_node_modules(tmp_path / "modules")
    (tmp_path / "modules" / "@mlc-ai" / "web-runtime").mkdir(parents=True)
    assert find_node_modules(tmp_path / "modules") == tmp_path / "modules"


def test_the_versions_to_install_are_those_that_are_tested() -> None:
    tested = json.loads((ROOT / "tests" / "web" / "package.json").read_text())
    versions = {**tested.get("dependencies", {}), **tested.get("devDependencies", {})}
    for package in INSTALL.split()[2:]:
        name, _, version = package.rpartition("@")
        assert versions[name] == version


# Calls that only a driver of the runtime makes, and the file that makes them for everybody.
ONE_DRIVER = {
    "-dawn-features": "webgpu_device.mjs",
    ".detectGPUDevice(": "webgpu_device.mjs",
    "createPolyfillWASI": "webgpu_model.mjs",
    "fetchTensorCache": "webgpu_model.mjs",
    "vm.builtin.kv_state_": "webgpu_model.mjs",
}


@pytest.mark.parametrize("call", ONE_DRIVER)
def test_the_web_runtime_has_one_driver(call: str) -> None:
    folders = (ROOT / name for name in ("gemma4_compile", "tests", "benchmarks"))
    scripts = [path for folder in folders for path in folder.rglob("*.mjs")]
    found = {
        path for path in scripts if "node_modules" not in path.parts and call in path.read_text()
    }
    assert found == {ROOT / "gemma4_compile" / "verification" / ONE_DRIVER[call]}


def test_a_missing_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemma4_compile.runtime.device.device.NATIVE_KINDS", {"cpu": CPU})
    with pytest.raises(ArtifactError, match="packages for `metal` do not run here"):
        runner_for("metal", None)


def test_other_targets_run_in_this_process() -> None:
    run, devices = runner_for("cpu", None)
    assert run is run_here
    assert devices == []


def test_steps_with_media_are_described_and_their_values_written_once(tmp_path: Path) -> None:
    settings = ImageSettings(begin=5, soft=6, end=7, video=8, block_size=2)
    rgb = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    picture = Picture.of(rgb, settings)
    sound = Sound.of(np.linspace(-1, 1, 700, dtype=np.float32), AudioSettings(1, 2, 3))
    prompt = Prompt.joined([[4], Rows(picture, 5, 6, 7)])
    embed = _described(Embed(picture), tmp_path)["embed"]
    assert embed == {"kind": "image", "name": picture.digest.hex(), "shape": [6, 12]}
    step = _described(Step(prompt, clear=True), tmp_path)
    assert step["ids"] == [4, 5, *[6] * 6, 7]
    assert step["clear"]
    run = {"start": 2, "count": 6, "first": 0, "modality": abi.MODALITY_MEDIA, "medium": embed}
    assert step["runs"] == [run]
    heard = _described(Embed(sound), tmp_path)["embed"]
    assert heard == {"kind": "audio", "name": sound.digest.hex(), "shape": [700]}
    assert len(list(tmp_path.iterdir())) == 3
    values = np.fromfile(tmp_path / f"{picture.digest.hex()}.values", "<f4")
    np.testing.assert_array_equal(values.reshape(6, 12), picture.pixels)
    positions = np.fromfile(tmp_path / f"{picture.digest.hex()}.positions", "<i4")
    np.testing.assert_array_equal(positions.reshape(6, 2), picture.positions)
    samples = np.fromfile(tmp_path / f"{sound.digest.hex()}.values", "<f4")
    np.testing.assert_array_equal(samples, sound.samples)


def test_steps_of_text_have_no_runs(tmp_path: Path) -> None:
    step = _described(Step((3, 4), chunk=0), tmp_path)
    assert step == {"ids": [3, 4], "clear": False, "chunk": 0, "follow": False, "runs": []}
    assert list(tmp_path.iterdir()) == []

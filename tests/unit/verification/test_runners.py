"""What is missing for WebGPU is named before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.verification.runners import INSTALL, find_node_modules, run_here, runner_for

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
    monkeypatch.setattr("gemma4_compile.runtime.device.DEVICE_TYPES", {"cpu": 1})
    with pytest.raises(ArtifactError, match="packages for `metal` do not run here"):
        runner_for("metal", None)


def test_other_targets_run_in_this_process() -> None:
    run, devices = runner_for("cpu", None)
    assert run is run_here
    assert devices == []

"""The trial of subgroup matrices: a software device has none, so WGSL is all that is checked."""

import subprocess
from pathlib import Path

import pytest

from tests.web.dawn import HERE, TIMEOUT_S, VulkanDriver

pytestmark = pytest.mark.dawn
TRIAL = HERE.parents[1] / "benchmarks" / "webgpu" / "subgroup_matrix.mjs"


def node(script: Path, *args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", str(script), *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_every_shape_is_valid_wgsl(lavapipe: VulkanDriver, tmp_path: Path):
    done = node(HERE / "null_device.mjs", env=lavapipe.environment(tmp_path))

    found = [text for text in done.stdout.splitlines() if text.startswith("found: ")]
    *shapes, wrong = (text.removeprefix("found: ") for text in found)
    assert shapes == [""] * 6, done.stdout
    assert wrong.startswith("error: ")


def test_a_device_without_the_feature_is_refused(lavapipe: VulkanDriver, tmp_path: Path):
    cases = tmp_path / "cases.jsonl"
    cases.write_text("")

    done = node(TRIAL, str(cases), env=lavapipe.environment(tmp_path))

    assert done.returncode == 1
    assert "offers no chromium-experimental-subgroup-matrix" in done.stderr

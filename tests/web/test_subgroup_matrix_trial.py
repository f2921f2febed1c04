"""The trial of subgroup matrices: a software device has none, so WGSL is all that is checked."""

from pathlib import Path

import pytest

from tests.web.dawn import HERE, VulkanDriver, run_node

pytestmark = pytest.mark.dawn
TRIAL = HERE.parents[1] / "benchmarks" / "webgpu" / "subgroup_matrix.mjs"


def test_every_shape_is_valid_wgsl(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    done = run_node(HERE / "null_device.mjs", env=lavapipe.environment(tmp_path))

    found = [text for text in done.stdout.splitlines() if text.startswith("found: ")]
    *shapes, wrong = (text.removeprefix("found: ") for text in found)
    assert shapes == [""] * 6, done.stdout
    assert wrong.startswith("error: ")


def test_a_device_without_the_feature_is_refused(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text("")

    done = run_node(TRIAL, str(cases), env=lavapipe.environment(tmp_path))

    assert done.returncode == 1
    assert "offers no chromium-experimental-subgroup-matrix" in done.stderr

"""A whole sound input on Dawn in Node, called as WebLLM calls it, beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.passes.lowering import generate
from gemma4_compile.targets import link, target_spec
from gemma4_compile.types import Array
from tests import sounds, tolerances
from tests.numerics.dawn_kernels import DRIVER
from tests.web.dawn import VulkanDriver, run_driver

pytestmark = [pytest.mark.dawn, pytest.mark.parity]

COUNTS = (161, 9000, 1281, 641)  # shorter ones after a longer one


def written(folder: Path, name: str, array: Array) -> dict[str, Any]:
    np.ascontiguousarray(array).tofile(folder / name)
    return {"file": name, "shape": array.shape, "dtype": str(array.dtype)}


@pytest.mark.parametrize(
    ("audio", "recipe"),
    [
        pytest.param(sounds.TOWER, "q8f16", id="tower", marks=pytest.mark.slow),
        pytest.param(sounds.UNIFIED, "q4f32", id="12B"),
    ],
)
def test_rows_equal_transformers(
    audio: dict[str, Any], recipe: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu")
    made = sounds.model(audio, recipe, spec)
    link(generate(made.module, spec), tmp_path / "model.wasm", spec)
    params = [written(tmp_path, f"p{i}.bin", array) for i, array in enumerate(made.tensors)]
    calls = [
        {
            "function": abi.AUDIO_ADAPTER,
            "args": [written(tmp_path, f"{count}.bin", sounds.speech(count)), params],
            "result": f"{count}.out",
        }
        for count in COUNTS
    ]
    job = {"library": str(tmp_path / "model.wasm"), "output": str(tmp_path), "cases": calls}

    run_driver(DRIVER, job, tmp_path, lavapipe.environment(tmp_path))

    for count in COUNTS:
        expected = made.truth.rows(sounds.speech(count))
        rows = np.fromfile(tmp_path / f"{count}.out", np.float32).reshape(expected.shape)
        bound = tolerances.SOUND_ROWS[recipe]
        np.testing.assert_allclose(rows, expected, rtol=0, atol=bound)

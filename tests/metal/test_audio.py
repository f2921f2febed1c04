"""A whole sound input on the emulated Metal device beside transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from gemma4_compile import abi
from gemma4_compile.passes.lowering import generate
from tests import sounds, tolerances
from tests.metal import emulator


@pytest.mark.parametrize(
    ("audio", "recipe"),
    [
        pytest.param(sounds.TOWER, "q8f16", id="tower", marks=pytest.mark.slow),
        pytest.param(sounds.UNIFIED, "q4f32", id="12B"),
    ],
)
def test_rows_equal_transformers(
    audio: dict[str, object], recipe: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    made = sounds.model(audio, recipe, emulator.SPEC)
    emulator.link(generate(made.module, emulator.SPEC), tmp_path / "model.so", emulator.SPEC)
    library = tvm.runtime.load_module(str(tmp_path / "model.so"))
    vm = relax.VirtualMachine(library, metal_device)
    params = [tvm.runtime.tensor(np.ascontiguousarray(a), metal_device) for a in made.tensors]

    for count in (161, 1281, 9000, 641):  # a shorter one after a longer one
        samples = sounds.speech(count)
        rows = vm[abi.EMBED_AUDIO](tvm.runtime.tensor(samples, metal_device), params).numpy()
        expected = made.truth.rows(samples)
        bound = tolerances.SOUND_ROWS[recipe]
        np.testing.assert_allclose(rows, expected, rtol=0, atol=bound)

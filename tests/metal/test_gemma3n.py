"""A whole small Gemma 3n on the emulated Metal device, next to transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.runtime import Engine
from tests import gemma3n, hf, models, packages, tolerances
from tests.parity.conftest import Case
from tests.parity.test_recipes import run_two_turns

KIND, RECIPE = "3n e2b", "q4f16"


@pytest.mark.slow
def test_two_turns_in_chunks(metal_packages: None, tmp_path: Path) -> None:
    text = gemma3n.KINDS[KIND]
    checkpoint = models.write_checkpoint(tmp_path / "checkpoint", text)
    package = packages.compile_package(
        checkpoint.path, RECIPE, tmp_path / "package", target="metal", optimised=False
    )
    run_two_turns(
        Case(
            package=package,
            engine=Engine.open(package),
            model=hf.load(
                text, packages.dequantised_weights(package, checkpoint, RECIPE), "float32"
            ),
            window=text["sliding_window"],
            tolerance=tolerances.ACTIVATIONS[RECIPE],
            routing_gap=0.0,
        )
    )

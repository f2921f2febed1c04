"""`suppress_tokens` of a checkpoint: those logits are out of reach, the others are untouched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.runtime import Engine
from tests import hf, models, packages, tolerances

pytestmark = pytest.mark.parity

RECIPE = "q4f32"


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_suppressed_tokens_are_never_the_best(tied: bool, tmp_path: Path) -> None:
    text = {**models.UNIFIED_LIKE, "tie_word_embeddings": tied}
    checkpoint = models.write_checkpoint(tmp_path / "checkpoint", text)
    ids = models.prompt(20)
    generation = checkpoint.path / "generation_config.json"
    declared = json.loads(generation.read_text())

    def truth_of(package: Path) -> np.ndarray:
        weights = packages.dequantised_weights(package, checkpoint, RECIPE)
        return hf.logits(hf.load(checkpoint.text_config, weights, "float32"), ids)

    plain = packages.compile_package(checkpoint.path, RECIPE, tmp_path / "plain", optimised=False)
    truth = truth_of(plain)
    suppressed = sorted({int(truth[14].argmax()), int(truth[19].argmax()), 255})
    generation.write_text(json.dumps({**declared, "suppress_tokens": suppressed}))
    package = packages.compile_package(
        checkpoint.path, RECIPE, tmp_path / "package", optimised=False
    )

    engine = Engine.open(package)
    engine.clear()
    found = {14: engine.prefill(ids[:15].tolist())}
    found |= {position: engine.decode(int(ids[position])) for position in range(15, 20)}
    for position, logits in found.items():
        expected = truth[position].copy()
        expected[suppressed] = -1e30
        np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=tolerances.LOGITS_F32)
        assert logits.argmax() == expected.argmax()
    build = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]
    assert build["suppressed_tokens"] == suppressed

"""Which matrices are chosen by what: experts by their own positions, layers one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.unit.calibration.calibrated import checkpoint, compiled, plain

pytestmark = pytest.mark.parity

from gemma4_compile.calibration import gptq, layers  # noqa: E402


def test_an_expert_that_none_chose_keeps_the_plain_search(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, "moe")
    name = "layers.0.router.per_expert_scale"
    assert name in made.weights
    projection = made.weights["layers.0.router.proj.weight"]
    weights = dict(made.weights)
    # Tied logits of zeros go to the first experts; the last is never among them.
    weights["layers.0.router.proj.weight"] = np.zeros_like(projection)
    made = models.write_checkpoint(made.path, made.text_config, dtype="bfloat16", weights=weights)
    found = compiled(made, tmp_path)
    experts = weights["layers.0.experts.down_proj"]
    same = []
    for index, values in enumerate(experts):
        begin = index * len(values)
        rows = found.read("layers.0.experts.down_proj", begin, begin + len(values))
        same.append(bool((rows == plain(values)).all()))
    top = made.text_config["top_k_experts"]
    assert same.count(False) == top
    assert same.count(True) == len(experts) - top


@pytest.mark.slow
def test_a_killed_run_goes_on_after_its_last_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = checkpoint(tmp_path, "dense")
    whole = compiled(made, tmp_path)
    calls: list[int] = []
    choose = gptq.choose_codes

    def counted(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return choose(*given)

    (tmp_path / "again").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(layers, "choose_codes", counted)
        with pytest.raises(KeyboardInterrupt):
            compiled(made, tmp_path / "again")
        assert (tmp_path / "again" / ".out.calibration").exists()
        first, calls[:] = len(calls), [1] * 20
        found = compiled(made, tmp_path / "again")
    matrices = [
        name
        for name, values in made.weights.items()
        if name.startswith("layers.") and values.ndim == 2
    ]
    layer = [name for name in matrices if name.startswith("layers.0.")]
    assert first > len(layer)
    assert len(calls) - 20 == len(matrices) - len(layer)
    for name in matrices:
        rows = len(made.weights[name])
        np.testing.assert_array_equal(found.read(name, 0, rows), whole.read(name, 0, rows))

"""Keys in parts in a library on Dawn, next to transformers: what a client asks of a state."""

from __future__ import annotations

import numpy as np
import pytest

from tests import hf, models
from tests.drafted import CHUNK, drafted_package
from tests.tolerances import LOGITS_F32
from tests.web.dawn import Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

ROW = 4 * 64  # bytes of a key in float32
PART = 52  # positions: of 256 in five parts, for which 60 rows fit


@pytest.mark.slow
def test_rows_of_every_part_are_written_read_taken_back_and_restored(
    lavapipe: VulkanDriver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = drafted_package(tmp_path_factory, "e2b", target="webgpu", key_bytes=60 * ROW)
    ids = models.prompt(2 * PART + 9, seed=3).tolist()
    begin, first = PART - 5, PART + 4  # rows that are checked at once are in two parts
    steps: list[Step] = [
        {"op": "prefill", "ids": ids[:begin], "chunk": CHUNK, "save": str(begin - 1)},
        {"op": "verify", "ids": ids[begin:first], "save": "rows"},
        {"op": "decode", "id": ids[first], "save": str(first)},
        {"op": "pop", "count": 7},
        *({"op": "decode", "id": ids[at], "save": str(at)} for at in range(PART - 2, PART + 2)),
        {"op": "prefill", "ids": ids[PART + 2 : 2 * PART + 3], "chunk": 9, "save": "106"},
        {"op": "keep", "name": "kept"},
        {"op": "renew"},
        {"op": "prefill", "ids": [2, 7, 9]},
        {"op": "restore", "name": "kept"},
        {"op": "decode", "id": ids[2 * PART + 3], "save": "107"},
        {"op": "decode", "id": ids[2 * PART + 4], "save": "108"},
    ]
    run = run_on_dawn(
        made.package, steps, tmp_path_factory.mktemp("run"), lavapipe, optimised=False
    )
    expected = hf.logits(hf.load(made.target.text_config, made.target.weights, "float32"), ids)
    saved = [step["save"] for step in steps if "save" in step and step["save"] != "rows"]
    assert len(saved) == 9
    for name in saved:
        error = np.abs(run.logits(name) - expected[int(name)]).max()
        assert error <= LOGITS_F32, f"position {name}"
    rows = run.logits("rows").reshape(first - begin, -1)
    np.testing.assert_allclose(rows, expected[begin:first], rtol=0, atol=LOGITS_F32)
    kernels = (made.package / "model.wasm").read_bytes()
    assert b'\\"part\\": {\\"count\\": 5, \\"index\\": 4}' in kernels

"""A window in the place of the per-layer table on Dawn: logits are the table's, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.padded_rows import PADDING
from tests.web.compiled import DRAFTED, SEEING_LITTLE, Compiler
from tests.web.dawn import Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

CHUNK, WIDTH = 24, 160


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, count).tolist()


def both_ways(
    package: Path, steps: Sequence[Step], folder: Path, driver: VulkanDriver, rows: int
) -> None:
    """Run steps with the table, with a window, and with the table again; the same is saved."""
    names = [step["save"] for step in steps if "save" in step]
    todo: list[Step] = []
    for way, count in (("table", 0), ("window", rows), ("again", 0)):
        todo += [{"op": "window", "rows": count}, {"op": "clear"}]
        todo += [
            {**step, "save": f"{way}-{step['save']}"} if "save" in step else step for step in steps
        ]
    run = run_on_dawn(package, todo, folder, driver)
    for name in names:
        table, window, again = (run.logits(f"{way}-{name}") for way in ("table", "window", "again"))
        assert np.isfinite(table).all()
        assert np.array_equal(window, table), name
        assert np.array_equal(again, table), name


@pytest.mark.slow
def test_prompts_tokens_and_rows_of_guesses(
    compiled: Compiler, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    steps: list[Step] = [
        {"op": "prefill", "ids": ids_of(2 * CHUNK + 3, 1), "save": "prompt"},
        *({"op": "decode", "id": token, "save": f"token-{token}"} for token in (0, 7, 1023)),
        {"op": "verify", "ids": ids_of(4, 2), "save": "guesses"},
    ]
    both_ways(compiled(DRAFTED, "webgpu", "q4f16"), steps, tmp_path, lavapipe, CHUNK)


@pytest.mark.slow
def test_rows_that_padding_moves(
    compiled: Compiler, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    """A picture's padding is dropped and text around it keeps its rows."""
    picture = np.random.default_rng(3).normal(0, 1, (9, WIDTH)).astype(np.float32)
    picture[[2, 5, 6, 8], 0] = PADDING
    picture.tofile(tmp_path / "picture.f32")
    steps: list[Step] = [
        {"op": "prefill", "ids": ids_of(5, 4)},
        {"op": "rows", "rows": "picture", "count": 9, "modality": 1, "save": "picture"},
        {"op": "prefill", "ids": ids_of(CHUNK - 1, 5), "save": "text"},
        {"op": "decode", "id": 5, "save": "token"},
    ]
    both_ways(compiled(SEEING_LITTLE, "webgpu", "q4f16"), steps, tmp_path, lavapipe, CHUNK + 1)

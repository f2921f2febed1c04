"""The kernels between two rounds (`web/src/speculative/next_round.ts`) on Dawn, against NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.child import run_within
from tests.web.dawn import HERE, TIMEOUT_S, VulkanDriver, run_driver

pytestmark = pytest.mark.dawn

WEB = HERE.parents[1] / "web"
BUNDLER = WEB / "node_modules" / ".bin" / "esbuild"
MODULES = ("speculative/next_round", "gpu/native")

MAX_ROWS = 9
TABLE_ROWS = 128
DRAFT_POSITIONS, POSITIONS, UNIFORM = 0, 1, 4
RECORD = 3 + 2 * MAX_ROWS

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Case:
    """A round: its rows, how many drafts came true, where it began, and sizes in words.

    `row_after` says whether the draft after a wrong one is right again, which must not count.
    """

    rows: int
    accepted: int
    position: int
    stride: int = 64
    state: int = 300
    rotary: int = 50
    row_after: bool = False

    def buffers(self) -> dict[str, Words]:
        """Words of the buffers before the round's two kernels, at random but for what it needs."""
        rng = np.random.default_rng([self.rows, self.accepted, self.position])
        words = {
            "inputs": UNIFORM * self.stride + MAX_ROWS,
            "ids": MAX_ROWS,
            "drawn": MAX_ROWS + RECORD,
            "states": MAX_ROWS * self.state,
            "hidden": self.state,
            "table": TABLE_ROWS * (1 + self.rotary),
            "rotary": max(1, MAX_ROWS * self.rotary),
            "drafts": (MAX_ROWS - 1) * self.stride,
        }
        made = {
            name: rng.integers(0, 2**32, count, dtype=np.uint32) for name, count in words.items()
        }
        made["inputs"][POSITIONS * self.stride] = self.position
        for row in range(self.rows - 1):
            draft = made["drafts"][row * self.stride]
            right = row < self.accepted or (self.row_after and row > self.accepted)
            made["drawn"][row] = draft if right else draft ^ 1
        if self.rows < MAX_ROWS:  # what an earlier round left behind its tokens is no draft
            made["ids"][self.rows] = made["drawn"][self.rows - 1]
        return made

    def expected(self) -> dict[str, Words]:
        """The same afterwards."""
        before = self.buffers()
        after = {name: words.copy() for name, words in before.items()}
        inputs, drawn, cells = after["inputs"], after["drawn"], self.stride
        tokens = before["drawn"][:MAX_ROWS]
        after["ids"][1 : self.rows] = before["drafts"][: (self.rows - 1) * cells : cells]
        record = MAX_ROWS
        drawn[record : record + 3] = self.position, self.rows, self.accepted
        drawn[record + 3 : record + 3 + self.rows] = after["ids"][: self.rows]
        begin = record + 3 + MAX_ROWS
        drawn[begin : begin + self.rows] = tokens[: self.rows]
        after["ids"][0] = tokens[self.accepted]
        following = self.position + self.accepted + 1
        at = POSITIONS * cells
        inputs[at : at + 3] = following, self.rows, self.position + self.rows
        inputs[DRAFT_POSITIONS * cells] = inputs[DRAFT_POSITIONS * cells + 2] = following
        after["hidden"] = before["states"].reshape(MAX_ROWS, -1)[self.accepted]
        picked = np.arange(following, following + MAX_ROWS) % TABLE_ROWS
        table = before["table"].reshape(TABLE_ROWS, -1)[picked]
        inputs[UNIFORM * cells :] = table[:, 0]
        if self.rotary:
            after["rotary"] = table[:, 1:].ravel()
        return after


CASES = [
    *(Case(rows, accepted, 40) for rows in (1, 2, 5, 9) for accepted in range(rows)),
    Case(5, 1, 7, row_after=True),
    Case(4, 3, 3 * TABLE_ROWS - 6),  # the table wraps within the next round
    Case(9, 8, TABLE_ROWS - 9),  # or at its begin
    Case(3, 0, 100_000, state=1536, rotary=384),
    Case(6, 2, 11, rotary=0),
    Case(6, 4, 11, stride=8, state=1),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, lavapipe: VulkanDriver) -> list[dict[str, Any]]:
    """The buffers of every case, all on one device."""
    if not BUNDLER.is_file():
        pytest.skip("npm packages are not installed: run `npm ci` in web (make setup does)")
    folder: Path = tmp_path_factory.mktemp("next-round")
    sources = [str(WEB / "src" / f"{name}.ts") for name in MODULES]
    command = [
        str(BUNDLER),
        *sources,
        "--bundle",
        "--format=esm",
        "--entry-names=[name]",
        f"--outdir={folder}",
    ]
    done = run_within(TIMEOUT_S, command)
    assert done.returncode == 0, done.stderr
    (folder / "package.json").write_text('{"type": "module"}')
    cases = [
        {
            "sizes": {"stride": case.stride, "state": case.state, "rotary": case.rotary},
            "rows": case.rows,
            "buffers": {name: words.tolist() for name, words in case.buffers().items()},
        }
        for case in CASES
    ]
    job = {"modules": str(folder), "output": str(folder), "cases": cases}
    result = run_driver("next_round.mjs", job, folder, lavapipe.environment(folder))
    buffers: list[dict[str, Any]] = result["found"]
    return buffers


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
def test_a_round_leaves_what_the_next_one_reads(index: int, found: list[dict[str, Any]]) -> None:
    for name, words in CASES[index].expected().items():
        np.testing.assert_array_equal(np.asarray(found[index][name], np.uint32), words, name)

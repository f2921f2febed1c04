"""A whole prompt through subgroup matrices, on Dawn, next to transformers on the same shards.

No software driver has them: their calls are emulated (`emulated_matrices.py`), and exchanges within
32 threads go through workgroup memory (`subgroups.mjs`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.model_spec.modality import TEXT_ONLY
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.targets import TARGETS
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import FEATURE, MULTIPLY_ADD
from gemma4_compile.targets.webgpu import link_with
from gemma4_compile.targets.wgsl_halves import write_halves
from tests import hf, tolerances
from tests.numerics.emulated_matrices import OF_ALL_ROWS, emulated
from tests.packages import Silent, compile_small
from tests.web.compiled import SIZES, TINY
from tests.web.dawn import VulkanDriver, run_on_dawn

pytestmark = [pytest.mark.dawn, pytest.mark.parity, pytest.mark.slow]

RECIPE, LIMITS = "q4f16", "h200-matrices"
PROMPT, DECODED = 40, 2  # longer than a chunk and a window
THREADS = 32


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tiny` with the one library, whose matrices are emulated."""
    written: list[str] = []

    def write(text: str) -> str:
        written.append(text)
        return write_halves(emulated(text))

    def link(executable, output, spec, progress=None):  # type: ignore[no-untyped-def]
        link_with(executable, output, spec, progress, write)

    target = TARGETS["webgpu"]
    tuned = target.limits[LIMITS]
    spec = replace(tuned, tuning=replace(tuned.tuning, subgroup_matrices=OF_ALL_ROWS))
    limits = {**target.limits, LIMITS: spec}
    monkeypatch.setitem(TARGETS, "webgpu", replace(target, link=link, limits=limits))
    output, sizes = tmp_path / "package", SIZES[TINY]
    request = CompileRequest(
        TINY,
        "webgpu",
        RECIPE,
        output,
        context_length=sizes.context_length,
        prefill_chunk=sizes.prefill_chunk,
        limits=LIMITS,
        modalities=TEXT_ONLY,
    )
    compile_small(request, Silent())
    for kernel in ("prefill_attention", "int8_gemm"):
        texts = [text for text in written if re.search(rf"^fn {kernel}", text, re.MULTILINE)]
        assert any(MULTIPLY_ADD in text for text in texts), f"{kernel} multiplies matrices"
    return output


def test_logits_are_those_of_transformers(
    package: Path, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    (library,) = Provenance.from_json(read_artifact(package / abi.PROVENANCE_FILE)).libraries
    assert FEATURE in library.features
    ids = [2, *np.random.default_rng(0).integers(107, 1000, PROMPT + DECODED - 1).tolist()]
    truth = hf.logits(hf.tiny(package, RECIPE), ids)
    steps = [
        {"op": "prefill", "ids": ids[:PROMPT], "save": "0"},
        *({"op": "decode", "id": ids[PROMPT + i], "save": str(i + 1)} for i in range(DECODED)),
    ]

    run = run_on_dawn(package, steps, tmp_path, lavapipe, emulated=THREADS)

    for index, expected in enumerate(truth[PROMPT - 1 :]):
        np.testing.assert_allclose(
            run.logits(str(index)),
            expected,
            rtol=0,
            atol=tolerances.LOGITS_INT8,
            err_msg=str(index),
        )

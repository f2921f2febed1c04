"""Attention of patches in subgroup matrices, emulated, against the definition, on Dawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.attention import visible_keys
from gemma4_compile.targets.kernels.attention.subgroup_matrix_patches import (
    HEADROOM,
    KEYS,
    ROWS,
    SLACK,
    fits_subgroup_matrices,
)
from gemma4_compile.targets.tuning import PatchAttentionTuning
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.emulated_matrices import emulated_spec
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

F16, F32 = "float16", "float32"
BLOCKS = 9  # 81 patches: a whole tile of queries and a ragged one, three steps of keys


def check(cases: list[KernelCase], rows: int, driver: VulkanDriver, folder: Path) -> None:
    spec = emulated_spec(patch_attention=PatchAttentionTuning(subgroup_rows=rows))
    results = run_on_dawn(cases, spec, driver, folder)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
@pytest.mark.parametrize(
    ("rows", "operator"),
    [
        (16, PatchAttention(2, 72, 3, F16, F16)),  # half of the last 16 channels is there
        pytest.param(16, PatchAttention(2, 64, 3, F16, F32), marks=pytest.mark.slow),
        pytest.param(32, PatchAttention(2, 64, 3, F16, F16), marks=pytest.mark.exhaustive),
        # Of two heads and of whole vectors of channels above and below.
        pytest.param(32, PatchAttention(1, 72, 3, F16, F16), marks=pytest.mark.slow),
        pytest.param(16, PatchAttention(1, 8, 3, F16, F16), marks=pytest.mark.slow),
        pytest.param(16, PatchAttention(1, 16, 1, F16, F16), marks=pytest.mark.slow),
        pytest.param(16, PatchAttention(1, 16, 2, F16, F16), marks=pytest.mark.slow),
        pytest.param(16, PatchAttention(1, 16, 6, F16, F16), marks=pytest.mark.slow),
        pytest.param(32, PatchAttention(1, 96, 3, F16, F16), marks=pytest.mark.exhaustive),
    ],
)
def test_matrices_compute_the_definition(
    rows: int, operator: PatchAttention, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    check([make_case(operator, 1, rows=BLOCKS)], rows, lavapipe, tmp_path)


@pytest.mark.dawn
def test_padding_is_found_anew_when_the_words_end(
    lavapipe: VulkanDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_kernel.cache_clear()  # kernels are kept by operator and limits
    monkeypatch.setattr(visible_keys, "STEPS_AHEAD", 2)  # of three
    case = make_case(PatchAttention(1, 24, 3, F16, F16), 1, rows=BLOCKS)  # of no other test
    positions, *others = case.arrays
    padded = positions.copy()
    padded[[2, 7]] = -1  # of the first word and of the second's first
    after = [padded, *(array.copy() for array in others)]
    run(case.operator, *after)
    assert not np.array_equal(after[-1], case.expected[0]), "or nothing is shown"
    changed = replace(case, args=(padded, *others), expected=(after[-1],))
    check([changed], 16, lavapipe, tmp_path)
    make_kernel.cache_clear()


def with_rising_scores(case: KernelCase) -> KernelCase:
    """The case with scores of deviation 24, and queries that float16 has exactly."""
    positions, q, *others = case.arrays
    louder = (q * 6).astype(np.float16).astype(q.dtype)
    after = [positions, louder, *(array.copy() for array in others)]
    run(case.operator, *after)
    return replace(case, args=(positions, louder, *others), expected=(after[-1],))


@pytest.mark.dawn
@pytest.mark.parametrize("rows", [16, pytest.param(32, marks=pytest.mark.slow)])
def test_sums_are_rescaled_where_scores_rise(
    rows: int, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    case = with_rising_scores(make_case(PatchAttention(1, 16, 3, F16, F16), 1, rows=BLOCKS))
    _, q, key, *_ = case.arrays
    highest = np.maximum.accumulate(q.reshape(-1, 16) @ key[:, 0].astype(F32).T, axis=1)
    rises = highest[:, -1] - highest[:, KEYS - 1]
    assert (rises[:ROWS] > HEADROOM + SLACK).any(), "or nothing is shown"
    check([case], rows, lavapipe, tmp_path)


def test_heads_that_shared_memory_does_not_hold_are_left_to_another_kernel() -> None:
    spec = target_spec("webgpu", "h200-matrices")
    assert fits_subgroup_matrices(PatchAttention(2, 72, 3, F16, F16), spec)
    assert not fits_subgroup_matrices(PatchAttention(2, 72, 3, F32, F32), spec)
    assert not fits_subgroup_matrices(PatchAttention(2, 256, 3, F16, F16), spec)
    plain = target_spec("webgpu", "h200")
    assert not fits_subgroup_matrices(PatchAttention(2, 72, 3, F16, F16), plain)

"""Kernels of several residual streams against their definitions, on Dawn in Node.

The definitions themselves are held against transformers (tests/parity/test_gemma3n.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.altup import (
    AltupCollapse,
    AltupCorrect,
    AltupExpand,
    AltupInject,
    AltupPredict,
    SplitStreams,
    TakeStream,
)
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.laurel import LaurelResidual
from gemma4_compile.operators.rows import CHUNK, ONE, Rows
from gemma4_compile.operators.sparse_gate import SparseGate, deviations
from gemma4_compile.targets import target_spec
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

EPS = 1e-6


def altup_operators(rows: Rows, streams: int, width: int, dtype: str) -> list[Operator]:
    """Each operator once, with a stream in the midst as the active one."""
    sizes, active = (rows, streams, width), streams // 2
    return [
        AltupExpand(*sizes),
        AltupPredict(*sizes, active, EPS, dtype),
        AltupPredict(*sizes, active, EPS, dtype, injects=True),
        LaurelResidual(*sizes, active, EPS, dtype),
        AltupCorrect(*sizes, active, EPS, scaled=True),
        AltupCorrect(*sizes, 0, EPS, scaled=False),
        AltupInject(*sizes, EPS),
        AltupInject(*sizes, EPS, apart=True),
        SplitStreams(*sizes),
        TakeStream(*sizes, streams - 1),
        AltupCollapse(*sizes),
        AltupCollapse(*sizes, apart=True),
        SparseGate(rows, 2 * width + 5, deviations(0.95)),
    ]


@pytest.mark.parametrize(
    ("limits", "rows", "streams", "width", "dtype"),
    [
        ("default", ONE, 4, 2048, "float16"),
        # The width is that of the first, all else that of the third.
        pytest.param("compat", CHUNK, 4, 2048, "float32", marks=pytest.mark.exhaustive),
        pytest.param("compat", CHUNK, 3, 90, "float32", marks=pytest.mark.slow),
    ],
)
def test_kernels_compute_what_their_definitions_say(
    limits: str,
    rows: Rows,
    streams: int,
    width: int,
    dtype: str,
    lavapipe: VulkanDriver,
    tmp_path: Path,
) -> None:
    found = altup_operators(rows, streams, width, dtype)
    cases = [make_case(op, seed) for seed, op in enumerate(found)]

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)

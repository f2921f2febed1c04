"""Texts of kernels: five of E2B's sizes as they are kept in snapshots/, and their names.

A change of a kernel shows in its text. Where it is meant, write the snapshots anew and read the
difference before it is committed:

    RENEW_SNAPSHOTS=1 .venv/bin/python -m pytest tests/passes/test_kernel_sources.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import pytest

from gemma4_compile.operators.activations import INTERLEAVED, STEPPED_INT8, SteppedOutput
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.sampling import SampleTopP
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.quantization.rows import RowScheme
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from tests.matmuls import int8_linear


class Heads(TypedDict):
    """The fields that both kinds of attention have."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    cache_rows: int


SNAPSHOTS = Path(__file__).with_name("snapshots")
RENEW = "RENEW_SNAPSHOTS"
NAME = "snapshot"  # of every kernel here: what a library calls it is not part of a snapshot
SPEC = target_spec("webgpu")
HEADS: Heads = {"heads": 8, "kv_heads": 1, "head_dim": 256, "window": 512, "cache_rows": 1024}
OPERATORS: Mapping[str, Operator] = {
    "normed_int8_gemv": int8_linear(
        rows=ONE,
        layout=WeightLayout(4, "float16", 32, 1536, (2048,)),
        in_dtype="float32",
        prologue=Norm(eps=1e-6, scaled=True),
    ),
    "gemm": Linear(
        rows=CHUNK,
        layout=WeightLayout(4, "float16", 32, 1536, (2560,)),
        in_dtype="float16",
    ),
    "decode_attention": SplitAttention(
        **HEADS,
        rows=ONE,
        cache_dtype="float16",
        splits=8,
        grain=64,
        query=NormedQuery(pairs=128, rotary_total=192, eps=1e-6),
    ),
    "prefill_attention": PrefillAttention(
        **HEADS, rows=CHUNK, cache_dtype="float16", out_dtype="float16"
    ),
    "sample_top_p": SampleTopP(vocab=262_144),
}


def text_of(operator: Operator) -> str:
    lines = kernel_source(make_kernel(operator, SPEC), NAME, SPEC).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("name", OPERATORS)
def test_a_text_is_that_of_its_snapshot(name: str) -> None:
    path, text = SNAPSHOTS / f"{name}.wgsl", text_of(OPERATORS[name])
    if os.environ.get(RENEW):
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8")
    assert text == kept, f"the kernel has changed; if it should have: {RENEW}=1, see this file"


def test_every_snapshot_belongs_to_a_kernel() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(OPERATORS)


def test_a_text_differs_from_another_name_by_the_name_alone() -> None:
    func = make_kernel(RmsNorm(ONE, 1536, 1e-6, "float16"), SPEC)
    first, second = (kernel_source(func, name, SPEC) for name in ("first", "other"))
    assert "fn first_kernel(" in first
    assert first != second
    assert first.replace("first_kernel", "other_kernel") == second


def test_a_block_has_read_its_steps_before_it_waits() -> None:
    operator = Linear(
        ONE,
        RowScheme(2).layout(1536, (24_576,)),
        "float32",
        Epilogue.GELU_PAIRS.value,
        activations=STEPPED_INT8,
        prologue=Norm(eps=1e-6),
        output=SteppedOutput((12_288, 12_288), True, reader_steps=2, result=INTERLEAVED),
    )
    text = text_of(operator)
    before, _, after = text[text.index("fn ") :].partition("workgroupBarrier();")
    reads = {"steps_ptr[0i]", "steps_ptr[1i]", "steps_ptr[3i]", "reader_steps_ptr[0i]"}
    assert {read for read in reads if f" {read}" in before} == reads
    assert "steps_ptr" not in after


def test_a_target_without_kernels_of_a_device_shows_the_loops() -> None:
    func = RmsNorm(ONE, 1536, 1e-6, "float16").definition()
    assert "def rms(" in kernel_source(func, "rms", target_spec("cpu"))

"""CUDA's text of what kernels call on tensor cores."""

from __future__ import annotations

import inspect
import re

import pytest

from gemma4_compile.targets.cuda_tensor_cores import SOURCES
from gemma4_compile.targets.kernels.tiles import tensor_cores


def test_every_call_has_a_text() -> None:
    named = re.findall(r'^[A-Z_]+ = "(gemma4_\w+)"$', inspect.getsource(tensor_cores), re.MULTILINE)
    assert set(named) == set(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_a_text_defines_its_function_and_no_other(name: str) -> None:
    text = SOURCES[name]
    assert re.findall(r"__device__ (?:unsigned int|void) (\w+)\(", text) == [name]
    assert text.count("{") == text.count("}"), "braces of the format are gone"
    assert "{{" not in text


def test_instructions_are_those_of_the_oldest_gpu() -> None:
    """Turing has products of 8 channels of halves and 16 of bytes; those of more came later."""
    instructions = set(re.findall(r"mma\.sync\S*", "".join(SOURCES.values())))
    assert instructions == {
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
    }

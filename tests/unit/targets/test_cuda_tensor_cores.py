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
    assert instructions("".join(map(for_turing, SOURCES.values()))) == {
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
    }


def test_newer_instructions_stand_under_their_condition() -> None:
    older, every = "".join(map(for_turing, SOURCES.values())), "".join(SOURCES.values())
    assert "cp.async" in every
    assert "cp.async" not in older
    newer = instructions(every) - instructions(older)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in newer


def instructions(text: str) -> set[str]:
    return set(re.findall(r"mma\.sync\S*", text))


def for_turing(text: str) -> str:
    """A text without what newer GPUs compile of it."""
    return re.sub(r"#if __CUDA_ARCH__ >= 800\n.*?\n(#else|#endif)", "", text, flags=re.DOTALL)

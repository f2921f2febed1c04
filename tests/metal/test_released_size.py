"""A released size for Metal: every kernel is a program, says only what MSL knows, and is linked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tvm import relax

from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import link, target_spec
from tests.metal import emulator
from tests.passes.test_full_size import CHUNK, shortened
from tests.unit.targets.macos_file import read_macos_library, unsigned_pages

SPEC = target_spec("metal")
PRESET = "gemma-4-26B-A4B-it"  # dense layers and experts
MOST_BUFFERS = 31

# Metal's, by the chapters of its specification.
TYPES = {"float2", "float4", "half4", "int4", "uint2", "uint4", "long", "long4"}  # long4: since 2.3
FUNCTIONS = {
    *("as_type", "clamp", "max", "min", "select"),  # common
    *("ceil", "cos", "exp", "log", "sin", "sqrt", "tanh"),  # math
    *("simd_max", "simd_min", "simd_shuffle", "simd_shuffle_down", "simd_shuffle_xor", "simd_sum"),
    "threadgroup_barrier",  # threads
}
WORDS = {"buffer", "for", "if", "kernel"}


@pytest.fixture(scope="module")
def executable() -> relax.VMExecutable:
    config, recipe = shortened(PRESET), RECIPES["q4f16"]
    module = build_module(config, recipe, SPEC, decoder_options(recipe, SPEC, CHUNK))
    return generate(lower(module, SPEC), SPEC)


@pytest.fixture(scope="module")
def sources(executable: relax.VMExecutable) -> dict[str, str]:
    """The kernels' MSL by name."""
    waiting: list[Any] = [executable.mod]
    while waiting[0].kind != "metal":
        waiting = [*waiting[1:], *waiting[0].imports]
    text = waiting[0].inspect_source("metal")
    parts = re.split(r"^// Function: (\w+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.slow
def test_a_cpp_compiler_takes_every_kernel(sources: dict[str, str]) -> None:
    assert len(sources) > 40
    emulator.check_kernels(sources)


@pytest.mark.slow
def test_kernels_call_what_metal_has(sources: dict[str, str]) -> None:
    known = TYPES | FUNCTIONS | WORDS | set(sources)
    for name, source in sources.items():
        called = set(re.findall(r"\b([a-zA-Z_]\w*)\(", source))
        assert called <= known, f"{name}: {called - known}"


@pytest.mark.slow
def test_threadgroup_arrays_are_declared_once_and_read_as_what_they_are(
    sources: dict[str, str],
) -> None:
    for name, source in sources.items():
        assert not re.search(r"\*\(threadgroup ", source), f"{name}: alignment is not sure"
        nested = re.search(r"^ {3,}threadgroup \w", source, re.MULTILINE)
        assert nested is None, f"{name}: only a kernel's own scope may declare them"
        assert len(re.findall(r"\[\[ buffer\(", source)) <= MOST_BUFFERS


@pytest.mark.slow
def test_they_are_linked(executable: relax.VMExecutable, tmp_path: Path) -> None:
    path = tmp_path / "model.dylib"
    link(executable, path, SPEC)
    assert unsigned_pages(path) == []
    assert read_macos_library(path).oldest_macos == (13, 0, 0)

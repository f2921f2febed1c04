"""CUDA's text of what turns words of weights into halves, executed by the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.packings import NIBBLES, SIXES
from gemma4_compile.targets.cuda_warpgroups import SOURCES
from gemma4_compile.targets.kernels.tiles.warpgroups import (
    DECODE_NIBBLES,
    DECODE_OFFSET_NIBBLES,
    DECODE_SIXES,
)
from tests.metal import emulator

WORDS = 64
# What cuda_fp16.h has of it; a float32 holds what is rounded once, of terms as below.
_HALVES = """
#define __forceinline__
#define __device__
using __half = _Float16;
struct alignas(4) __half2 { __half x, y; };
static __half2 __half2half2(__half a) { return {a, a}; }
static __half2 __float2half2_rn(float a) { return {(__half)a, (__half)a}; }
static __half2 __hadd2(__half2 a, __half2 b) { return {(__half)(a.x + b.x), (__half)(a.y + b.y)}; }
static __half2 __hsub2(__half2 a, __half2 b) { return {(__half)(a.x - b.x), (__half)(a.y - b.y)}; }
static __half2 __hmul2(__half2 a, __half2 b) { return {(__half)(a.x * b.x), (__half)(a.y * b.y)}; }
static __half fma_of(float a, float b, float c) { return (__half)(a * b + c); }
static __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {fma_of(a.x, b.x, c.x), fma_of(a.y, b.y, c.y)};
}
"""
_LOOP = """
extern "C" void decode(unsigned* to, unsigned* words, __half* terms, int count) {{
  for (int i = 0; i < count; ++i) {{ __half* own = terms + 3 * i; {call} }}
}}
"""
CALLS = {
    DECODE_NIBBLES: "{name}(to + 4 * i, words[i], 7.0f, own[1]);",
    DECODE_OFFSET_NIBBLES: "{name}(to + 4 * i, words[i], own[0], own[1], own[2]);",
    DECODE_SIXES: "for (int e = 0; e < 2; ++e)"
    " {name}(to + 8 * i + 4 * e, words[3 * i + e], words[3 * i + 2], e, 31.0f, own[1]);",
}


def decoded(
    name: str, words: npt.NDArray[np.uint32], terms: npt.NDArray[np.float16]
) -> npt.NDArray[np.float16]:
    """Eight halves of each word of codes, as the text leaves them."""
    loop = _LOOP.format(call=CALLS[name].format(name=name))
    library = emulator.compile_text(_HALVES + SOURCES[name] + loop)
    eights = 2 if name == DECODE_SIXES else 1
    halves = np.empty((len(terms) * eights, 8), np.float16)
    values: list[npt.NDArray[Any]] = [halves, words, terms]
    pointers = [value.ctypes.data_as(ctypes.c_void_p) for value in values]
    ctypes.CDLL(str(library)).decode(*pointers, len(terms))
    return halves


@pytest.mark.parametrize("name", list(CALLS))
def test_codes_become_scaled_halves(name: str) -> None:
    rng = np.random.default_rng(7)
    packing = SIXES if name == DECODE_SIXES else NIBBLES
    words = rng.integers(0, 2**32, (WORDS, packing.run_words), dtype=np.uint32)
    terms = np.empty((WORDS, 3), np.float16)
    terms[:, 0] = rng.integers(0, 16, WORDS)
    terms[:, 1] = rng.uniform(2**-8, 2**-6, WORDS)
    terms[:, 2] = rng.uniform(2**-9, 2**-7, WORDS) * rng.choice([-1, 1], WORDS)
    if name != DECODE_OFFSET_NIBBLES:
        terms[:, 0], terms[:, 2] = packing.zero_point, 0.0
    zero, scale, offset = (terms[:, k, None].astype(np.float64) for k in range(3))
    weights = (packing.unpack(words) - zero) * scale + offset
    # Channels in pairs that are four apart.
    expected = weights.astype(np.float16).reshape(-1, 2, 4).swapaxes(1, 2).reshape(-1, 8)
    np.testing.assert_array_equal(decoded(name, words, terms), expected)

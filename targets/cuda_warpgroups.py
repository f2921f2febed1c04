"""CUDA's text of the calls in kernels/tiles/warpgroups.py.

In the image for `sm_90a` alone they do something: no other GPU has the instructions, and there the
host launches no kernel that calls them.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.targets.kernels.tiles.warpgroups import (
    BEGIN,
    COMMIT,
    DECODE_NIBBLES,
    DECODE_OFFSET_NIBBLES,
    DECODE_SIXES,
    MOST_COLUMNS,
    MULTIPLY,
    SHOW,
    WAIT,
    WAIT_BUT_ONE,
)

_ORDER = """
__forceinline__ __device__ void {name}() {{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("{instruction};" : : : "memory");
#endif
}}
"""
# A descriptor: where B begins and how far apart its groups of eight rows are, in units of 16 bytes;
# 128-byte swizzling.
_MULTIPLY = """
__forceinline__ __device__ void {name}(float* sums, const unsigned int* a, const void* line,
                                       int part) {{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  unsigned int at = (unsigned int)__cvta_generic_to_shared(line) + 32 * part;
  unsigned long long b = (unsigned long long)((at & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) |
                         (1ull << 62);
  asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{registers}}}, "
               "{{{a}}}, {b}, 1, 1, 1, 0;"
               : {sums}
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}}
"""
# As that of bytes: the last bits of 1024 as a half count ones.
_DECODE_NIBBLES = """
__forceinline__ __device__ void {name}(unsigned int* to, unsigned int word, float zero_point,
                                       __half scale) {{
  __half2 zero = __float2half2_rn(1024.0f + zero_point), factor = __half2half2(scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    unsigned int pair = ((word >> (4 * i)) & 0x000F000Fu) | 0x64006400u;
    __half2 values = __hmul2(__hsub2(*(__half2*)&pair, zero), factor);
    to[i] = *(unsigned int*)&values;
  }}
}}
"""
_DECODE_OFFSET_NIBBLES = """
__forceinline__ __device__ void {name}(unsigned int* to, unsigned int word, __half zero_point,
                                       __half scale, __half offset) {{
  __half2 zero = __hadd2(__float2half2_rn(1024.0f), __half2half2(zero_point));
  __half2 factor = __half2half2(scale), own = __half2half2(offset);
#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    unsigned int pair = ((word >> (4 * i)) & 0x000F000Fu) | 0x64006400u;
    __half2 values = __hfma2(__hsub2(*(__half2*)&pair, zero), factor, own);
    to[i] = *(unsigned int*)&values;
  }}
}}
"""
# A pair's upper bits are a shift away from their place above its lower ones.
_DECODE_SIXES = """
__forceinline__ __device__ void {name}(unsigned int* to, unsigned int word, unsigned int upper,
                                       int eight, float zero_point, __half scale) {{
  __half2 zero = __float2half2_rn(1024.0f + zero_point), factor = __half2half2(scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    int shift = i / 2 * 8 + i % 2 * 2 + eight * 4 - 4;
    unsigned int high = shift < 0 ? upper << -shift : upper >> shift;
    unsigned int pair = ((word >> (4 * i)) & 0x000F000Fu) | (high & 0x00300030u) | 0x64006400u;
    __half2 values = __hmul2(__hsub2(*(__half2*)&pair, zero), factor);
    to[i] = *(unsigned int*)&values;
  }}
}}
"""


def _multiply(columns: int) -> str:
    count = columns // 2
    numbered = [f"%{index}" for index in range(count + 5)]
    return _MULTIPLY.format(
        name=f"{MULTIPLY}{columns}",
        columns=columns,
        registers=", ".join(numbered[:count]),
        a=", ".join(numbered[count : count + 4]),
        b=numbered[-1],
        sums=", ".join(f'"+f"(sums[{index}])' for index in range(count)),
    )


_INSTRUCTIONS = {
    BEGIN: "wgmma.fence.sync.aligned",
    COMMIT: "wgmma.commit_group.sync.aligned",
    WAIT_BUT_ONE: "wgmma.wait_group.sync.aligned 1",
    WAIT: "wgmma.wait_group.sync.aligned 0",
    SHOW: "fence.proxy.async.shared::cta",
}

SOURCES: Mapping[str, str] = {
    **{f"{MULTIPLY}{count}": _multiply(count) for count in range(8, MOST_COLUMNS + 1, 8)},
    **{
        name: _ORDER.format(name=name, instruction=instruction)
        for name, instruction in _INSTRUCTIONS.items()
    },
    DECODE_NIBBLES: _DECODE_NIBBLES.format(name=DECODE_NIBBLES),
    DECODE_OFFSET_NIBBLES: _DECODE_OFFSET_NIBBLES.format(name=DECODE_OFFSET_NIBBLES),
    DECODE_SIXES: _DECODE_SIXES.format(name=DECODE_SIXES),
}
"""Source by name; a call of another name is none of these."""

"""CUDA's text of the calls in kernels/tiles/tensor_cores.py, each written where it is used.

Two of Turing's instructions of 8 channels make one of 16, which newer GPUs have; those copy to
shared memory by themselves, too. The architecture that a text is compiled for says which it takes.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    BEGIN_COPY,
    CLIP,
    COPY,
    COPY_HALF,
    DECODE,
    END_COPY,
    LOAD,
    LOAD_TRANSPOSED,
    MULTIPLY_ADD,
    MULTIPLY_ADD_BYTES,
    PACK,
    STREAM,
    WAIT_FOR_COPIES,
    WARP_BARRIER,
)

_COPY = """
__forceinline__ __device__ void {name}(void* to, const void* from) {{
  *({type}*)to = *(const {type}*)from;
}}
"""
_BEGIN_COPY = """
__forceinline__ __device__ void {name}(unsigned int* registers, void* to, const void* from) {{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               : : "r"((unsigned int)__cvta_generic_to_shared(to)),
                   "l"(__cvta_generic_to_global(from)) : "memory");
#else
  *(uint4*)registers = *(const uint4*)from;
#endif
}}
"""
_END_COPY = """
__forceinline__ __device__ void {name}(void* to, const unsigned int* registers) {{
#if __CUDA_ARCH__ < 800
  *(uint4*)to = *(const uint4*)registers;
#endif
}}
"""
_WAIT_FOR_COPIES = """
__forceinline__ __device__ void {name}() {{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}}
"""
# Volatile: the compiler may not move it down to where its result is needed.
_STREAM = """
__forceinline__ __device__ void {name}(unsigned int* to, const void* from) {{
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
}}
"""
_LOAD = """
__forceinline__ __device__ void {name}(unsigned int* to, const void* from) {{
  unsigned int at = (unsigned int)__cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}}
"""
_MULTIPLY_ADD = """
__forceinline__ __device__ void {name}(float* sums, const unsigned int* a, const unsigned int* b) {{
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int half = 0; half < 2; ++half)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{{%0, %1, %2, %3}}, {{%4, %5}}, {{%6}}, {{%0, %1, %2, %3}};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}}
"""
_MULTIPLY_ADD_BYTES = """
__forceinline__ __device__ void {name}(int* to, const int* sums, unsigned int a, unsigned int b) {{
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 "
               "{{%0, %1}}, {{%2}}, {{%3}}, {{%4, %5}};"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(a), "r"(b), "r"(sums[0]), "r"(sums[1]));
}}
"""
_PACK = """
__forceinline__ __device__ unsigned int {name}(float low, float high) {{
  __half2 both = __floats2half2_rn(low, high);
  return *(unsigned int*)&both;
}}
"""
_CLIP = """
__forceinline__ __device__ unsigned int {name}(unsigned int word, float low, float high) {{
  float2 both = __half22float2(*(__half2*)&word);
  __half2 within = __floats2half2_rn(fmaxf(fminf(both.x, high), low),
                                     fmaxf(fminf(both.y, high), low));
  return *(unsigned int*)&within;
}}
"""
# 0x6400 is 1024 as a half, whose last ten bits count ones.
_DECODE = """
__forceinline__ __device__ void {name}(unsigned int* to, unsigned int word, float zero_point,
                                       __half scale) {{
  __half2 zero = __float2half2_rn(1024.0f + zero_point), factor = __half2half2(scale);
#pragma unroll
  for (int half = 0; half < 2; ++half) {{
    unsigned int bytes = __byte_perm(word, 0x64646464u, half ? 0x4342 : 0x4140);
    __half2 values = __hmul2(__hsub2(*(__half2*)&bytes, zero), factor);
    to[half] = *(unsigned int*)&values;
  }}
}}
"""
_WARP_BARRIER = """
__forceinline__ __device__ void {name}() {{
  __syncwarp();
}}
"""

SOURCES: Mapping[str, str] = {
    COPY: _COPY.format(name=COPY, type="uint4"),
    STREAM: _STREAM.format(name=STREAM),
    COPY_HALF: _COPY.format(name=COPY_HALF, type="uint2"),
    BEGIN_COPY: _BEGIN_COPY.format(name=BEGIN_COPY),
    END_COPY: _END_COPY.format(name=END_COPY),
    WAIT_FOR_COPIES: _WAIT_FOR_COPIES.format(name=WAIT_FOR_COPIES),
    LOAD: _LOAD.format(name=LOAD, form=""),
    LOAD_TRANSPOSED: _LOAD.format(name=LOAD_TRANSPOSED, form=".trans"),
    MULTIPLY_ADD: _MULTIPLY_ADD.format(name=MULTIPLY_ADD),
    MULTIPLY_ADD_BYTES: _MULTIPLY_ADD_BYTES.format(name=MULTIPLY_ADD_BYTES),
    PACK: _PACK.format(name=PACK),
    CLIP: _CLIP.format(name=CLIP),
    DECODE: _DECODE.format(name=DECODE),
    WARP_BARRIER: _WARP_BARRIER.format(name=WARP_BARRIER),
}
"""Source by name; a call of another name is none of these."""

"""CUDA's text of the calls in kernels/tiles/tensor_cores.py, each written where it is used.

Two of Turing's instructions of 8 channels make one of 16, which newer GPUs have; those copy to
shared memory by themselves, too. Their products of bytes are larger. The
architecture that a text is compiled for says which it takes.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    ADD_SCALED,
    BEGIN_COPY,
    BEGIN_STAGE_COPY,
    BEGIN_STAGE_HALF,
    CLIP,
    COPY,
    COPY_HALF,
    DECODE,
    END_COPY,
    END_STAGE,
    END_STAGE_COPY,
    END_STAGE_HALF,
    LOAD,
    LOAD_HALF,
    LOAD_TRANSPOSED,
    LOAD_WORD,
    MULTIPLY_ADD,
    MULTIPLY_ADD_BYTES,
    MULTIPLY_ADD_GROUP,
    MULTIPLY_ADD_GROUP_EXACTLY,
    MULTIPLY_ADD_LEVELS,
    MULTIPLY_ADD_ROWS,
    MULTIPLY_ADD_ROWS_EXACTLY,
    MULTIPLY_ROWS,
    PACK,
    STORE_LANE,
    STREAM,
    SUM_ROWS,
    WAIT_BUT_ONE,
    WAIT_BUT_TWO,
    WAIT_FOR_COPIES,
    WAIT_FOR_STAGES,
    WARP_BARRIER,
)

_COPY = """
__forceinline__ __device__ void {name}(void* to, const void* from) {{
  *({type}*)to = *(const {type}*)from;
}}
"""
_LOAD_HALF = """
__forceinline__ __device__ void {name}(void* to, const void* piece, int half) {{
  *(uint2*)to = ((const uint2*)piece)[half];
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
# Before Ampere such a copy is made at once.
_BEGIN_STAGE = """
__forceinline__ __device__ void {name}(unsigned int* registers, void* to, const void* from) {{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size};"
               : : "r"((unsigned int)__cvta_generic_to_shared(to)),
                   "l"(__cvta_generic_to_global(from)) : "memory");
#else
  *({type}*)to = *(const {type}*)from;
#endif
}}
"""
_END_STAGE_COPY = """
__forceinline__ __device__ void {name}(void* to, const unsigned int* registers) {{
}}
"""
_END_STAGE = """
__forceinline__ __device__ void {name}() {{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}}
"""
_WAIT_FOR_STAGE = """
__forceinline__ __device__ void {name}() {{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group {but};" : : : "memory");
#endif
}}
"""
_LOAD_WORD = """
__forceinline__ __device__ void {name}(void* to, const void* piece, int word) {{
  *(unsigned int*)to = ((const unsigned int*)piece)[word];
}}
"""
_STORE_LANE = """
__forceinline__ __device__ void {name}(void* piece, int lane, float value) {{
  ((float*)piece)[lane] = value;
}}
"""
# Volatile: the compiler may not move it down to where its result is needed.
_STREAM = """
__forceinline__ __device__ void {name}(void* to, const void* from) {{
  unsigned int* words = (unsigned int*)to;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(from));
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
# Of 16 rows by 8 over 32 channels: one instruction since Ampere, four before it.
_PRODUCT = """
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int part = 0; part < 2; ++part)
      asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {{%0, %1}}, {{%2}}, {{%3}}, {{%0, %1}};"
          : "+r"(c[2 * half]), "+r"(c[2 * half + 1]) : "r"(a[2 * part + half]), "r"(b[part]));
#endif
"""
# Integers are added to the bits of 3 * 2**22 as a float, whose last bits count ones: what the
# result is above that float is their sum. A scale of few bits takes it away in its own product.
_MULTIPLY_ADD_GROUP = (
    """
__forceinline__ __device__ void {name}(float* sums, const unsigned int* a, const unsigned int* b,
                                       const float* a_scales, const float* b_scales) {{
  const int magic = 0x4B400000;
  int c[4] = {{magic, magic, magic, magic}};"""
    + _PRODUCT
    + """\
  const float none = __int_as_float(magic);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int k = 0; k < 2; ++k) {{
      float above = __int_as_float(c[2 * half + k]);
      {add}
    }}
}}
"""
)
_ADD = "sums[2 * half + k] += (above - none) * (a_scales[half] * b_scales[k]);"
_ADD_EXACTLY = (
    "sums[2 * half + k] += fmaf(above, b_scales[k], -(none * b_scales[k])) * a_scales[half];"
)
# The same with a result elsewhere than the integers that a sum begins with.
_ROWS_PRODUCT = """
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%10, %11, %12, %13}};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "r"(begins[0]), "r"(begins[1]), "r"(begins[2]), "r"(begins[3]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = begins[i];
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int part = 0; part < 2; ++part)
      asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {{%0, %1}}, {{%2}}, {{%3}}, {{%0, %1}};"
          : "+r"(c[2 * half]), "+r"(c[2 * half + 1]) : "r"(a[2 * part + half]), "r"(b[part]));
#endif
"""
_MULTIPLY_ROWS = (
    """
__forceinline__ __device__ void {name}(int* c, const int* begins, const unsigned int* a,
                                       const unsigned int* b) {{"""
    + _ROWS_PRODUCT
    + """\
}}
"""
)
_MULTIPLY_ADD_ROWS = (
    """
__forceinline__ __device__ void {name}(float* sums, const unsigned int* a, const unsigned int* b,
                                       const int* begins, const float* a_scales,
                                       const float* b_scales) {{
  int c[4];"""
    + _ROWS_PRODUCT
    + """\
  const float none = __int_as_float(0x4B400000);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int k = 0; k < 2; ++k) {{
      float above = __int_as_float(c[2 * half + k]);
      {add}
    }}
}}
"""
)
_ADD_ROWS_EXACTLY = (
    "sums[2 * half + k] += fmaf(above, a_scales[half], -(none * a_scales[half])) * b_scales[k];"
)
_MULTIPLY_ADD_LEVELS = (
    """
__forceinline__ __device__ void {name}(int* c, const unsigned int* a, const unsigned int* b) {{"""
    + _PRODUCT
    + """\
}}
"""
)
_SUM_ROWS = (
    """
__forceinline__ __device__ void {name}(float* to, const unsigned int* a, const float* scales) {{
  const unsigned int b[2] = {{0x01010101u, 0x01010101u}};
  int c[4] = {{0, 0, 0, 0}};"""
    + _PRODUCT
    + """\
  to[0] = (float)c[0] * scales[0];
  to[1] = (float)c[2] * scales[1];
}}
"""
)
_ADD_SCALED = """
__forceinline__ __device__ void {name}(float* sums, const float* rows, const float* columns) {{
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int k = 0; k < 2; ++k) sums[2 * half + k] += rows[half] * columns[k];
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
    LOAD_HALF: _LOAD_HALF.format(name=LOAD_HALF),
    BEGIN_COPY: _BEGIN_COPY.format(name=BEGIN_COPY),
    END_COPY: _END_COPY.format(name=END_COPY),
    WAIT_FOR_COPIES: _WAIT_FOR_COPIES.format(name=WAIT_FOR_COPIES),
    BEGIN_STAGE_COPY: _BEGIN_STAGE.format(name=BEGIN_STAGE_COPY, cache="cg", size=16, type="uint4"),
    BEGIN_STAGE_HALF: _BEGIN_STAGE.format(name=BEGIN_STAGE_HALF, cache="ca", size=8, type="uint2"),
    END_STAGE_COPY: _END_STAGE_COPY.format(name=END_STAGE_COPY),
    END_STAGE_HALF: _END_STAGE_COPY.format(name=END_STAGE_HALF),
    END_STAGE: _END_STAGE.format(name=END_STAGE),
    WAIT_FOR_STAGES: _WAIT_FOR_STAGE.format(name=WAIT_FOR_STAGES, but=0),
    WAIT_BUT_ONE: _WAIT_FOR_STAGE.format(name=WAIT_BUT_ONE, but=1),
    WAIT_BUT_TWO: _WAIT_FOR_STAGE.format(name=WAIT_BUT_TWO, but=2),
    LOAD_WORD: _LOAD_WORD.format(name=LOAD_WORD),
    STORE_LANE: _STORE_LANE.format(name=STORE_LANE),
    LOAD: _LOAD.format(name=LOAD, form=""),
    LOAD_TRANSPOSED: _LOAD.format(name=LOAD_TRANSPOSED, form=".trans"),
    MULTIPLY_ADD: _MULTIPLY_ADD.format(name=MULTIPLY_ADD),
    MULTIPLY_ADD_BYTES: _MULTIPLY_ADD_BYTES.format(name=MULTIPLY_ADD_BYTES),
    MULTIPLY_ADD_GROUP: _MULTIPLY_ADD_GROUP.format(name=MULTIPLY_ADD_GROUP, add=_ADD),
    MULTIPLY_ADD_GROUP_EXACTLY: _MULTIPLY_ADD_GROUP.format(
        name=MULTIPLY_ADD_GROUP_EXACTLY, add=_ADD_EXACTLY
    ),
    MULTIPLY_ROWS: _MULTIPLY_ROWS.format(name=MULTIPLY_ROWS),
    MULTIPLY_ADD_ROWS: _MULTIPLY_ADD_ROWS.format(name=MULTIPLY_ADD_ROWS, add=_ADD),
    MULTIPLY_ADD_ROWS_EXACTLY: _MULTIPLY_ADD_ROWS.format(
        name=MULTIPLY_ADD_ROWS_EXACTLY, add=_ADD_ROWS_EXACTLY
    ),
    MULTIPLY_ADD_LEVELS: _MULTIPLY_ADD_LEVELS.format(name=MULTIPLY_ADD_LEVELS),
    SUM_ROWS: _SUM_ROWS.format(name=SUM_ROWS),
    ADD_SCALED: _ADD_SCALED.format(name=ADD_SCALED),
    PACK: _PACK.format(name=PACK),
    CLIP: _CLIP.format(name=CLIP),
    DECODE: _DECODE.format(name=DECODE),
    WARP_BARRIER: _WARP_BARRIER.format(name=WARP_BARRIER),
}
"""Source by name; a call of another name is none of these."""

// Matmul of packed rows (int8, a float32 scale for each 32 channels) with weights of 4 or 8 bits
// (a float16 scale for each 32 channels) by Hopper's wgmma: float16 operands, float32 sums.
// Weights are the rows of the product and come from registers, x from shared memory.
//
//   python -m benchmarks.cuda.wgmma_functions 256 192 176 128 > wgmma.inc
//   nvcc -std=c++17 -O3 -I. -gencode=arch=compute_90a,code=sm_90a -DSTAGE_COUNT=2 benchmarks/cuda/wgmma_gemm.cu
#include <cstdio>
#include <cstdlib>
#include <cstdint>
#include <cmath>
#include <vector>
#include <cuda_fp16.h>
#include "wgmma.inc"
#define CHECK(e)                                      \
  do {                                                \
    cudaError_t r_ = (e);                             \
    if (r_ != cudaSuccess) {                          \
      printf("%s: %s\n", #e, cudaGetErrorString(r_)); \
      exit(1);                                        \
    }                                                 \
  } while (0)

template <int N, int BITS>
struct Shape {
  static constexpr int THREADS = 256, ROWS_W = 128, STEP = 128;
  static constexpr int ITEMS = (N + 63) / 64;
  static constexpr int SUB = N * 128;  // bytes of 64 channels of all rows
  static constexpr int STAGE = 2 * SUB;
  static constexpr int STAGES = STAGE_COUNT;
  static constexpr int SHARED = STAGES * STAGE + N * 4 + 1024;
};

__device__ __forceinline__ unsigned prmt(unsigned a, unsigned b, unsigned s) {
  return __byte_perm(a, b, s);
}
__device__ __forceinline__ unsigned mul2(unsigned v, __half2 minus, __half2 scale) {
  __half2 h = __hmul2(__hsub2(*(__half2*)&v, minus), scale);
  return *(unsigned*)&h;
}
// BITS 4: eight channels c0..c7 of one word: pair i is (c_i, c_{i+4}).
// BITS 8: two words.
template <int N, int BITS>
__global__ __launch_bounds__(256, 1) void wgmma_gemm(
    const unsigned* __restrict__ xw, const float* __restrict__ xs, const unsigned* __restrict__ w,
    const __half* __restrict__ ws, float* __restrict__ y, int n, int rows, int cols) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<N, BITS>;
  extern __shared__ __align__(1024) unsigned char raw_shared[];
  unsigned char* shared =
      raw_shared + ((1024 - ((unsigned)__cvta_generic_to_shared(raw_shared) & 1023)) & 1023);
  float* powers = (float*)(shared + S::STAGES * S::STAGE);
  const int tid = threadIdx.x, lane = tid & 31, t = lane & 3, g = lane >> 2, warp = tid >> 5;
  const int first_m = blockIdx.x * N, first_n = blockIdx.y * S::ROWS_W;
  const int groups = cols / 32, steps = cols / 128;
  // Items of x: row tid / 4 + 64 p, words 2 j and 2 j + 1 of each of four groups.
  const int j = tid & 3;
  int xrow[S::ITEMS];
  float inverse[S::ITEMS];
#pragma unroll
  for (int p = 0; p < S::ITEMS; ++p) {
    int r = tid / 4 + 64 * p;
    xrow[p] = min(first_m + min(r, N - 1), n - 1);
    float most = 0.f;
    const float4* s4 = (const float4*)(xs + (size_t)xrow[p] * groups);
    for (int k = j; k < groups / 4; k += 4) {
      float4 s = s4[k];
      most = fmaxf(fmaxf(fmaxf(most, s.x), fmaxf(s.y, s.z)), s.w);
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    unsigned e = __float_as_uint(most) & 0x7F800000u;
    inverse[p] = __uint_as_float((254u << 23) - e);
    if (j == 0 && r < N) powers[r] = __uint_as_float(e);
  }
  constexpr int WWORDS = BITS == 4 ? 4 : 8;  // words of a group
  const int wrow0 = min(first_n + (warp >> 2) * 64 + (warp & 3) * 16 + 2 * g, rows - 1),
            wrow1 = min(wrow0 + 1, rows - 1);
  const uint4* wp0 = (const uint4*)(w + (size_t)wrow0 * (groups * WWORDS) + t * WWORDS);
  const uint4* wp1 = (const uint4*)(w + (size_t)wrow1 * (groups * WWORDS) + t * WWORDS);
  const __half* sp0 = ws + (size_t)wrow0 * groups + t;
  const __half* sp1 = ws + (size_t)wrow1 * groups + t;
  uint2 xraw[2][4];
  float4 xscale[2];
  unsigned wraw[2][WWORDS], wnext[2][WWORDS];
  __half wscale[2], snext[2];
  auto read_w = [&](int step, unsigned (*to)[WWORDS], __half* s) {
#pragma unroll
    for (int k = 0; k < WWORDS / 4; ++k) {
      *(uint4*)&to[0][4 * k] = __ldg(wp0 + step * WWORDS + k);
      *(uint4*)&to[1][4 * k] = __ldg(wp1 + step * WWORDS + k);
    }
    s[0] = sp0[step * 4];
    s[1] = sp1[step * 4];
  };
  auto read_x = [&](int step, int p, int slot) {
    const uint2* from = (const uint2*)(xw + (size_t)xrow[p] * (cols / 4) + step * 32) + j;
#pragma unroll
    for (int k = 0; k < 4; ++k) xraw[slot][k] = __ldg(from + 4 * k);
    xscale[slot] = __ldg((const float4*)(xs + (size_t)xrow[p] * groups) + step);
  };
  auto write_x = [&](int stage, int p, int slot) {
    int r = tid / 4 + 64 * p;
    if (64 * (p + 1) > N && r >= N) return;
    unsigned piece[4][4];
    const float* sc = (const float*)&xscale[slot];
    const __half2 minus = __float2half2_rn(1024.f + 128.f);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      __half2 s = __float2half2_rn(sc[k] * inverse[p]);
      unsigned a = xraw[slot][k].x ^ 0x80808080u, b = xraw[slot][k].y ^ 0x80808080u;
      if (BITS == 4) {  // words hold c0 c2 c1 c3, c4 c6 c5 c7
        unsigned lo = prmt(a, b, 0x5140), hi = prmt(a, b, 0x7362);  // c0 c4 c2 c6, c1 c5 c3 c7
        piece[0][k] = mul2(prmt(lo, 0x64646464u, 0x4140), minus, s);
        piece[1][k] = mul2(prmt(hi, 0x64646464u, 0x4140), minus, s);
        piece[2][k] = mul2(prmt(lo, 0x64646464u, 0x4342), minus, s);
        piece[3][k] = mul2(prmt(hi, 0x64646464u, 0x4342), minus, s);
      } else {  // pairs of neighbours
        piece[0][k] = mul2(prmt(a, 0x64646464u, 0x4140), minus, s);
        piece[1][k] = mul2(prmt(a, 0x64646464u, 0x4342), minus, s);
        piece[2][k] = mul2(prmt(b, 0x64646464u, 0x4140), minus, s);
        piece[3][k] = mul2(prmt(b, 0x64646464u, 0x4342), minus, s);
      }
    }
    unsigned char* to = shared + stage * S::STAGE + r * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *(uint4*)(to + (i >> 1) * S::SUB + (((2 * j + (i & 1)) ^ (r & 7)) << 4)) = *(uint4*)piece[i];
  };
  float sums[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sums[i] = 0.f;
  unsigned a[2][8];
  auto decode = [&](int q, unsigned* to) {  // word q of the group: two products' operands
    const __half2 s0 = __half2half2(wscale[0]), s1 = __half2half2(wscale[1]);
    if (BITS == 4) {
      const __half2 minus = __float2half2_rn(1024.f + 7.f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[2 * i] = mul2(((wraw[0][q] >> (4 * i)) & 0x000F000Fu) | 0x64006400u, minus, s0);
        to[2 * i + 1] = mul2(((wraw[1][q] >> (4 * i)) & 0x000F000Fu) | 0x64006400u, minus, s1);
      }
    } else {
      const __half2 minus = __float2half2_rn(1024.f + 127.f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[2 * i] =
            mul2(prmt(wraw[0][2 * q + i / 2], 0x64646464u, i & 1 ? 0x4342 : 0x4140), minus, s0);
        to[2 * i + 1] =
            mul2(prmt(wraw[1][2 * q + i / 2], 0x64646464u, i & 1 ? 0x4342 : 0x4140), minus, s1);
      }
    }
  };
  // a: pair i of row g, of row g + 8; a product takes pairs 2 h and 2 h + 1: a0 a1 a2 a3 in order.
  read_w(0, wraw, wscale);
#pragma unroll
  for (int p = 0; p < S::ITEMS; ++p) {
    read_x(0, p, 0);
    write_x(0, p, 0);
  }
  read_x(min(1, steps - 1), 0, 0);
  if (S::ITEMS > 1) read_x(min(1, steps - 1), 1, 1);
  decode(0, a[0]);
  gemma4_show_to_warpgroups();
  __syncthreads();
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    const int next = min(step + 1, steps - 1), after = min(step + 2, steps - 1);
    const int following = stage == S::STAGES - 1 ? 0 : stage + 1;
    const unsigned char* at = shared + stage * S::STAGE;
    read_w(next, wnext, snext);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if (q > 0) decode(q, a[q & 1]);
      gemma4_warpgroup_begin();
#pragma unroll
      for (int h = 0; h < 2; ++h) Wgmma<N>::run(sums, a[q & 1] + 4 * h, at + h * S::SUB, q);
      gemma4_warpgroup_commit();
      if (q < S::ITEMS) {
        write_x(following, q, q & 1);
        if (q + 2 < S::ITEMS)
          read_x(next, q + 2, q & 1);
        else
          read_x(after, q & 1, q & 1);
      }
      gemma4_warpgroup_wait_but_one();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      wscale[r] = snext[r];
#pragma unroll
      for (int k = 0; k < WWORDS; ++k) wraw[r][k] = wnext[r][k];
    }
    decode(0, a[0]);
    if (S::STAGES == 2) gemma4_warpgroup_wait();
    gemma4_show_to_warpgroups();
    __syncthreads();
    stage = following;
  }
  gemma4_warpgroup_wait();
#pragma unroll
  for (int b = 0; b < N / 8; ++b)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      int i = b * 8 + 2 * t + k, row = first_m + i;
      if (row < n && wrow0 + 1 < rows + 0) {
        float p = powers[i];
        *(float2*)(y + (size_t)row * rows + wrow0) =
            make_float2(sums[4 * b + k] * p, sums[4 * b + 2 + k] * p);
      }
    }
#endif
}

static uint32_t seed = 1;
static uint32_t rnd() {
  seed = seed * 1664525u + 1013904223u;
  return seed >> 8;
}

template <int N, int BITS>
void run(const char* name, int n, int rows, int cols) {
  using S = Shape<N, BITS>;
  const int groups = cols / 32, ww = BITS == 4 ? 4 : 8;
  static std::vector<uint32_t> xw, w;
  static std::vector<float> xs;
  static std::vector<__half> ws;
  if (xw.empty()) {
    const int most = BITS == 4 ? 1024 : 701;                       // rows of x
    const size_t weights = BITS == 4 ? 43008 * 168 : 16384 * 168;  // groups
    xw.resize((size_t)most * 21504 / 4);
    xs.resize((size_t)most * 672);
    w.resize(weights * ww);
    ws.resize(weights);
    for (auto& v : xw) v = rnd() ^ (rnd() << 16);
    for (auto& v : xw)
      for (int b = 0; b < 4; ++b)
        if (((v >> (8 * b)) & 255) == 128) v ^= 1u << (8 * b);
    for (auto& v : w) {
      v = rnd() ^ (rnd() << 16);
      if (BITS == 8)
        for (int b = 0; b < 4; ++b)
          if (((v >> (8 * b)) & 255) == 255) v ^= 1u << (8 * b);
    }
    for (auto& v : xs) v = 0.01f * (1 + rnd() % 100);
    for (auto& v : ws) v = __float2half(0.001f * (1 + rnd() % 30));
  }
  const size_t bx = (size_t)n * cols, bw = (size_t)rows * groups;
  uint32_t *dxw, *dw;
  float *dxs, *dy;
  __half* dws;
  CHECK(cudaMalloc(&dxw, bx));
  CHECK(cudaMalloc(&dw, bw * ww * 4));
  CHECK(cudaMalloc(&dxs, bx / 8));
  CHECK(cudaMalloc(&dws, bw * 2));
  CHECK(cudaMalloc(&dy, (size_t)n * rows * 4));
  CHECK(cudaMemcpy(dxw, xw.data(), bx, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(dw, w.data(), bw * ww * 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(dxs, xs.data(), bx / 8, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(dws, ws.data(), bw * 2, cudaMemcpyHostToDevice));
  CHECK(cudaMemset(dy, 0xFF, (size_t)n * rows * 4));
  CHECK(cudaFuncSetAttribute(wgmma_gemm<N, BITS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             S::SHARED));
  dim3 grid((n + N - 1) / N, (rows + 127) / 128);
  auto launch = [&] {
    wgmma_gemm<N, BITS><<<grid, 256, S::SHARED>>>(dxw, dxs, dw, dws, dy, n, rows, cols);
  };
  launch();
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  std::vector<float> y((size_t)n * rows);
  CHECK(cudaMemcpy(y.data(), dy, y.size() * 4, cudaMemcpyDeviceToHost));
  double worst = 0, norm = 0;
  int count = 0;
  for (int s = 0; s < 400; ++s) {
    int i = s < 8 ? n - 1 - s : rnd() % n, r = s < 8 ? rows - 1 - s : rnd() % rows;
    double sum = 0, size = 0;
    for (int c = 0; c < cols; ++c) {
      uint32_t word = w[((size_t)r * groups + c / 32) * ww + (c % 32) / (BITS == 4 ? 8 : 4)];
      int q = BITS == 4 ? int((word >> (4 * (c % 8))) & 15) - 7
                        : int((word >> (8 * (c % 4))) & 255) - 127;
      int place = c % 4;
      if (BITS == 4) place = place % 2 * 2 + place / 2;
      int xv = (int8_t)((xw[((size_t)i * cols + c) / 4] >> (8 * place)) & 255);
      double v = (double)xv * xs[(size_t)i * groups + c / 32] * q *
                 (double)__half2float(ws[(size_t)r * groups + c / 32]);
      sum += v;
      size += v * v;
    }
    worst = fmax(worst, fabs(sum - y[(size_t)i * rows + r]) / sqrt(size));
    norm += size;
    ++count;
  }
  cudaEvent_t e0, e1;
  cudaEventCreate(&e0);
  cudaEventCreate(&e1);
  float best = 1e9f, mean = 0;
  for (int k = 0; k < 3; ++k) launch();
  for (int k = 0; k < 7; ++k) {
    cudaEventRecord(e0);
    for (int q = 0; q < 4; ++q) launch();
    cudaEventRecord(e1);
    CHECK(cudaEventSynchronize(e1));
    float ms;
    cudaEventElapsedTime(&ms, e0, e1);
    ms /= 4;
    best = fminf(best, ms);
    mean += ms / 7;
  }
  printf(
      "%-16s N=%d bits=%d n=%d rows=%d cols=%d: %.1f us best, %.1f mean, %.0f Tops; worst error "
      "%.2e of the vector %s\n",
      name, N, BITS, n, rows, cols, best * 1e3, mean * 1e3, 2.0 * n * rows * cols / best / 1e9,
      worst, worst < 2e-3 ? "ok" : "WRONG");
  fflush(stdout);
  cudaFree(dxw);
  cudaFree(dw);
  cudaFree(dxs);
  cudaFree(dws);
  cudaFree(dy);
}
template <int N, int BITS>
void all() {
  for (int n : {1024, 512}) {
    run<N, BITS>("31B gate up", n, 43008, 5376);
    run<N, BITS>("31B down", n, 5376, 21504);
    run<N, BITS>("31B qkv", n, 16384, 5376);
    run<N, BITS>("12B gate up", n, 30720, 3840);
    run<N, BITS>("12B down", n, 3840, 15360);
  }
  run<N, BITS>("odd", 701, 1000, 1152);
}
int main() {
  all<256, 4>();
  all<192, 4>();
  all<176, 4>();
  all<128, 4>();
  run<256, 8>("31B qkv", 512, 16384, 5376);
  run<128, 8>("odd", 701, 1000, 1152);
}

"""Writes `wgmma.inc` for wgmma_gemm.cu: one function for each number of rows of x."""

from __future__ import annotations

import sys

_FUNCTION = """
template <> struct Wgmma<{n}> {{
  static __device__ __forceinline__ void run(float* d, const unsigned* a, unsigned long long b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{sums}}}, "
                 "{{{a}}}, {b}, 1, 1, 1, 0;"
                 : {out} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }}
}};"""


def function(n: int) -> str:
    """The function of 64 rows of W with `n` of x."""
    names = [f"%{index}" for index in range(n // 2 + 5)]
    out = ", ".join(f'"+f"(d[{index}])' for index in range(n // 2))
    sums, a = ", ".join(names[: n // 2]), ", ".join(names[n // 2 : -1])
    return _FUNCTION.format(n=n, sums=sums, a=a, b=names[-1], out=out)


if __name__ == "__main__":
    print("template <int N> struct Wgmma;")
    for rows in sys.argv[1:]:
        print(function(int(rows)))

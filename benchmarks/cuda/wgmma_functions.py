"""Writes wgmma.inc: one function for each number of rows of x."""
import sys
def wg(n):
    k=n//2
    d=", ".join(f"%{i}" for i in range(k))
    out=", ".join(f'"+f"(d[{i}])' for i in range(k))
    return f'''
template <> struct Wgmma<{n}> {{
  static __device__ __forceinline__ void run(float* d, const unsigned* a, unsigned long long b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{d}}}, "
      "{{%{k}, %{k+1}, %{k+2}, %{k+3}}}, %{k+4}, 1, 1, 1, 0;"
      : {out} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }}
}};'''
print("template <int N> struct Wgmma;")
for n in map(int, sys.argv[1:]): print(wg(n))

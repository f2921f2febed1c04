"""Writes `wgmma.inc` for wgmma_gemm.cu: the kernels' own text, by the number of rows of x."""

from __future__ import annotations

import sys

from gemma4_compile.targets.cuda_warpgroups import SOURCES
from gemma4_compile.targets.kernels.tiles.warpgroups import (
    BEGIN,
    COMMIT,
    MULTIPLY,
    SHOW,
    WAIT,
    WAIT_BUT_ONE,
)

_FUNCTION = """
template <> struct Wgmma<{rows}> {{
  static __device__ __forceinline__ void run(float* sums, const unsigned* a, const void* line,
                                             int part) {{
    {name}(sums, a, line, part);
  }}
}};"""


def functions(rows: list[int]) -> str:
    """What waits for products, and the products of 64 rows of W with each number of rows of x."""
    parts = [SOURCES[name] for name in (BEGIN, COMMIT, WAIT_BUT_ONE, WAIT, SHOW)]
    parts.append("template <int N> struct Wgmma;")
    for count in rows:
        name = f"{MULTIPLY}{count}"
        parts += [SOURCES[name], _FUNCTION.format(rows=count, name=name)]
    return "\n".join(parts)


if __name__ == "__main__":
    print(functions([int(rows) for rows in sys.argv[1:]]))

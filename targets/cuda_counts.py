"""CUDA's text of the calls in kernels/sampling/warp_sums.py."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.targets.kernels.sampling.warp_sums import ADD_MASS, COUNT

_ADD = """
__forceinline__ __device__ void {name}(void* to, {type} value) {{
  atomicAdd(({unsigned}*)to, ({unsigned})value);
}}
"""

SOURCES: Mapping[str, str] = {
    COUNT: _ADD.format(name=COUNT, type="int", unsigned="unsigned int"),
    ADD_MASS: _ADD.format(name=ADD_MASS, type="long long", unsigned="unsigned long long"),
}
"""Source by name; a call of another name is none of these."""

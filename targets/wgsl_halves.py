"""WGSL of `halves` in kernels/common/builtins.py, which TVM's generator prints as a call."""

from __future__ import annotations

from gemma4_compile.targets.kernels.common.builtins import HALVES

FUNCTION = f"""
// Finite numbers alone. unpack2x16float may give 0 for those below 2^-14, which have no leading one
// and count steps of 2^-24: by its bits, for WGSL's readers that know no hexadecimal floats.
fn {HALVES}(word : u32) -> vec2<f32> {{
  let halves = vec2<u32>(word, word >> 16u);
  let size = halves & vec2<u32>(0x7fffu);
  let sign = (halves & vec2<u32>(0x8000u)) << vec2<u32>(16u);
  let normal = (size << vec2<u32>(13u)) + vec2<u32>(0x38000000u);
  let small = bitcast<vec2<u32>>(vec2<f32>(size) * bitcast<f32>(0x33800000u));
  return bitcast<vec2<f32>>(select(normal, small, size < vec2<u32>(0x400u)) | sign);
}}
"""


def write_halves(text: str) -> str:
    """The text of a kernel with the function that it calls; as it is where it calls none."""
    return text + FUNCTION if f"{HALVES}(" in text else text

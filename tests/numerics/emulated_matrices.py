"""Subgroup matrices in plain WGSL, for software drivers, which do not have them.

A thread holds of a left matrix its row, of a right one its eight columns, and the sums where they
meet: row lane / 2, columns from lane % 2 * 8 on. Loads copy, as the device's do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.kernels.tiles import subgroup_matrices as calls
from gemma4_compile.targets.tuning import SubgroupMatrixTuning
from gemma4_compile.targets.wgsl_matrices import Dialect, Write, write_matrices


class _OfAllRows(SubgroupMatrixTuning):
    """Matrices of few rows are multiplied as float16, too."""

    integers_to: ClassVar[int] = 0


OF_ALL_ROWS = _OfAllRows()

# Ends of loops that no compiler knows. Mesa would write these loops out, and a kernel has dozens
# of them: LLVM took half as long again, some seconds, to compile what runs for a moment.
NONE_MORE = "(i32(threadIdx.x) >> 31u)"
CHANNELS, COLUMNS = f"k < 16i + {NONE_MORE}", f"c < 8i + {NONE_MORE}"
ROW, COLUMN = "(i32(threadIdx.x) % 32i / 2i)", "(i32(threadIdx.x) % 2i * 8i)"


def _half(memory: str, first: str, row: str, column: str, pitch: str) -> str:
    piece = f"{memory}[{first} + ({row}) * {pitch}i + ({column}) / 8i]"
    return f"unpack2x16float({piece}[({column}) % 8i / 2i])[({column}) % 2i]"


def _left(left: str, memory: str, first: str, pitch: str) -> str:
    half = _half(memory, first, ROW, "k", pitch)
    return f"for (var k = 0i; {CHANNELS}; k++) {{ left{left}[k] = {half}; }}"


def _right(transposed: bool) -> Write:
    def write(right: str, memory: str, first: str, pitch: str) -> str:
        place = ("k", f"{COLUMN} + c") if transposed else (f"{COLUMN} + c", "k")
        half = _half(memory, first, *place, pitch)
        return (
            f"for (var k = 0i; {CHANNELS}; k++) {{ for (var c = 0i; {COLUMNS}; c++) {{ "
            f"right{right}[k * 8i + c] = {half}; }} }}"
        )

    return write


def _multiply_add(total: str, left: str, right: str) -> str:
    return (
        f"for (var k = 0i; {CHANNELS}; k++) {{ for (var c = 0i; {COLUMNS}; c++) {{ "
        f"sum{total}[c] += left{left}[k] * right{right}[k * 8i + c]; }} }}"
    )


def _sum_place(memory: str, first: str, pitch: str) -> str:
    return f"{memory}[{first} + {ROW} * {pitch}i + ({COLUMN} + c) / 4i][c % 4i]"


def _store(bits: bool) -> Write:
    def write(total: str, memory: str, first: str, pitch: str) -> str:
        value = f"bitcast<u32>(sum{total}[c])" if bits else f"sum{total}[c]"
        place = _sum_place(memory, first, pitch)
        return f"for (var c = 0i; {COLUMNS}; c++) {{ {place} = {value}; }}"

    return write


def _load(total: str, memory: str, first: str, pitch: str) -> str:
    place = _sum_place(memory, first, pitch)
    return f"for (var c = 0i; {COLUMNS}; c++) {{ sum{total}[c] = {place}; }}"


def _dialect(bits: bool) -> Dialect:
    return Dialect(
        head="",
        kinds={"sum": "array<f32, 8>", "left": "array<f32, 16>", "right": "array<f32, 128>"},
        statements={
            calls.CLEAR: lambda total: f"sum{total} = array<f32, 8>();",
            calls.LEFT: _left,
            calls.RIGHT: _right(transposed=False),
            calls.RIGHT_TRANSPOSED: _right(transposed=True),
            calls.MULTIPLY_ADD: _multiply_add,
            calls.STORE: _store(bits),
            calls.LOAD: _load,
        },
    )


def emulated(text: str) -> str:
    """The text of a kernel for a device without subgroup matrices."""
    # Sums are stored as floats, or as the bits of words where they follow operands.
    return write_matrices(text, _dialect(bits="array<vec4<f32>, " not in text.split("@compute")[0]))


def emulated_spec(**tuning: Any) -> TargetSpec:
    """The limits with matrices for subgroups as small as software drivers' are, tuned anew."""
    spec = target_spec("webgpu", "h200-matrices")
    return replace(spec, simd_width=4, tuning=replace(spec.tuning, **tuning))

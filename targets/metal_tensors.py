"""Metal's text of the calls in kernels/tiles/tensor_operations.py, which TVM prints as calls.

A call is a line of its own. What it becomes uses the names that Metal 4.0 has: one tensor in line
over threadgroup memory for each operand, rows one after the other, and a product whose right
operand is transposed. Sums are set to 0 all, without a look at which of them a thread has: the name
of that question differs between versions of the headers.
"""

from __future__ import annotations

import re

from gemma4_compile.targets.kernels.tiles.tensor_operations import (
    BEGIN,
    HALF_BYTES,
    PUT_HALVES,
    RUN,
    STORE,
)

HEADERS = (
    "#include <metal_tensor>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
)
"""What a text has in addition; the launcher knows by it what a kernel needs."""
_FIRST = "#include <metal_stdlib>\n"
_CALL = re.compile(
    rf"^( *)({BEGIN}|{PUT_HALVES}|{RUN}|{STORE})\(\(&\((\w+)\[0\]\)\)(?:, (.*))?\);$", re.MULTILINE
)

_BEGIN = """\
auto gemma4_left = {left};
auto gemma4_right = {right};
constexpr auto gemma4_form = mpp::tensor_ops::matmul2d_descriptor({rows}, {columns}, {depth}, \
false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
mpp::tensor_ops::matmul2d<gemma4_form, execution_simdgroups<{simdgroups}>> gemma4_product;
auto gemma4_sums = gemma4_product.get_destination_cooperative_tensor<\
decltype(gemma4_left), decltype(gemma4_right), float>();
for (ushort gemma4_i = 0; gemma4_i < gemma4_sums.get_capacity(); ++gemma4_i) \
gemma4_sums[gemma4_i] = 0.0f;"""
_STORE = "auto gemma4_stored = {stored};\ngemma4_sums.store(gemma4_stored);"


def write_tensors(text: str) -> str:
    """The text of a kernel with its calls written out; as it is where it has none."""
    found, count = _CALL.subn(_written, text)
    if not count:
        return text
    assert found.count(_FIRST) == 1, "TVM's generator begins with Metal's library"
    return found.replace(_FIRST, _FIRST + HEADERS)


def _written(match: re.Match[str]) -> str:
    indent, name, memory, given = match.groups()
    return indent + _line(name, memory, given or "").replace("\n", "\n" + indent)


def _line(name: str, memory: str, given: str) -> str:
    if name == RUN:
        return "gemma4_product.run(gemma4_left, gemma4_right, gemma4_sums);"
    if name == PUT_HALVES:
        place, value = _both(given)
        return f"((threadgroup half4*){memory})[{place}] = half4({value});"
    numbers = [int(number) for number in given.split(", ")]
    if name == STORE:
        rows, columns = numbers
        return _STORE.format(stored=_tensor("float", memory, 0, columns, rows))
    rows, columns, depth, simdgroups, left_bytes = numbers
    left = "half" if left_bytes == HALF_BYTES else "float"
    behind = rows * depth * left_bytes // HALF_BYTES
    return _BEGIN.format(
        left=_tensor(left, memory, 0, depth, rows),
        right=_tensor("half", memory, behind, depth, columns),
        rows=rows,
        columns=columns,
        depth=depth,
        simdgroups=simdgroups,
    )


def _both(given: str) -> tuple[str, str]:
    """Two arguments, the first of which may hold calls."""
    depth = 0
    for at, char in enumerate(given):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
        if char == "," and not depth:
            return given[:at], given[at + 1 :].strip()
    raise AssertionError("two arguments")


def _tensor(dtype: str, memory: str, first: int, inner: int, outer: int) -> str:
    """A matrix in threadgroup memory, `outer` rows of `inner` elements, one after the other."""
    sizes, begin = "dextents<int32_t, 2>", f"(threadgroup {dtype}*){memory}"
    if first:
        begin += f" + {first}"
    kind = f"tensor<threadgroup {dtype}, {sizes}, tensor_inline>"
    return f"{kind}({begin}, {sizes}({inner}, {outer}))"

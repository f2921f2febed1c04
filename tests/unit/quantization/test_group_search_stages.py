"""Rounding to float16 in the stages of the search, next to NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.target import Target

from gemma4_compile.quantization.group_search_stages import _to_float16


def test_steps_are_rounded_to_float16_with_ties_to_even_and_never_to_infinity() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[1:] + halves[:-1]) / 2
    near = [np.nextafter(between, np.float32(end)) for end in (0, 1e9)]
    given = np.concatenate([halves, between, *near, np.array([65519, 65520, 1e9], np.float32)])

    def rounded(values: Any) -> Any:
        return te.compute(values.shape, lambda i: _to_float16(values[i]), name="rounded")

    values = te.placeholder(given.shape, "float32", name="values")
    function = te.create_prim_func([values, rounded(values)]).with_attr("global_symbol", "main")
    compiled = tvm.compile(tvm.IRModule({"main": function}), target=Target("llvm"))
    found = tvm.runtime.empty(given.shape, "float32")
    compiled["main"](tvm.runtime.tensor(given), found)
    expected = np.minimum(given, np.float32(65504)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found.numpy(), expected)

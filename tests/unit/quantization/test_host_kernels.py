"""What the conversion of weights has TVM compile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from gemma4_compile.quantization.host_kernels import compiled_once


def test_threads_compile_once_for_each_argument() -> None:
    made: list[float] = []

    @compiled_once
    def times(factor: float) -> tirx.PrimFunc:
        made.append(factor)

        @T.prim_func(s_tir=True)
        def kernel(given_handle: T.handle, found_handle: T.handle) -> None:
            given = T.match_buffer(given_handle, (4,), "float32")
            found = T.match_buffer(found_handle, (4,), "float32")
            for i in range(4):
                found[i] = given[i] * T.float32(factor)

        return kernel

    def run(factor: float) -> list[float]:
        found = tvm.runtime.empty((4,), "float32")
        times(factor)(tvm.runtime.tensor(np.arange(4, dtype="float32")), found)
        return [float(value) for value in found.numpy()]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, [2.0, 3.0] * 4))
    assert found == [[0.0, 2.0, 4.0, 6.0], [0.0, 3.0, 6.0, 9.0]] * 4
    assert sorted(made) == [2.0, 3.0]

"""Calls become graphs by their names; CUDA's own part is in tests/cuda."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile.runtime.device import cuda_graph
from gemma4_compile.runtime.device.cuda_graph import Watch
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library import call_graphs
from gemma4_compile.runtime.library.call_graphs import CallGraphs

Tensors = tuple[tvm_ffi.Tensor, ...]


class Sums:
    """Functions that note who calls them: sums of a tensor and a number."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def add(self, number: int, tensor: tvm_ffi.Tensor) -> Tensors:
        self.asked.append(number)
        return (tvm_ffi.from_dlpack(np.add(np.from_dlpack(tensor), np.float32(number))),)


class Recorded:
    """A graph that runs what it was recorded from, and has as many launches as it is told."""

    def __init__(self, action: Callable[[], Tensors], kernels: int) -> None:
        self.output, self.kernels, self.launches = action(), kernels, 0

    def launch(self) -> None:
        self.launches += 1


def test_a_name_is_a_graph_that_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Recorded] = []

    def record(cuda: Any, device: Device, watch: Watch, action: Callable[[], Tensors]) -> Recorded:
        graphs.append(Recorded(action, kernels=3 - len(graphs)))
        return graphs[-1]

    monkeypatch.setattr(cuda_graph, "record", record)
    monkeypatch.setattr(call_graphs, "CudaRuntime", object)
    plain, watched = Sums(), Sums()
    calls = CallGraphs(plain, watched, Watch(), Device.open("cpu"))
    assert calls.kernels == 0
    tensor = tvm_ffi.from_dlpack(np.arange(3, dtype=np.float32))

    def run(number: int) -> list[float]:
        (found,) = calls.run(f"{number}", lambda sums, one: sums.add(number, one), tensor)
        return np.from_dlpack(found).tolist()

    for _ in range(3):
        assert run(1) == [1, 2, 3]
        assert run(5) == [5, 6, 7]
    assert plain.asked == watched.asked == [1, 5]  # each once as it is, and once recorded
    assert [graph.launches for graph in graphs] == [3, 3]  # the first to compare, then replays
    assert calls.kernels == 3

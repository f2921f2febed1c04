"""A step's launches: what each belongs to, how long it takes, what it reads and writes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import tvm_ffi

from gemma4_compile.runtime.check.kernel_times import KernelTime, StepTimes


def tensor(*shape: int) -> tvm_ffi.Tensor:
    return tvm_ffi.from_dlpack(np.zeros(shape, np.float32))


class Clock:
    """Gives seconds that are set; counts starts and stops."""

    how = "set"

    def __init__(self) -> None:
        self.marks = ""
        self.seconds: list[float] = []

    def start(self) -> None:
        self.marks += "<"

    def stop(self) -> None:
        self.marks += ">"

    def take(self) -> list[float]:
        return self.seconds


NORM, MATRIX, NEXT_NORM, SECOND, HEAD = (tensor(*s) for s in ((4,), (8, 4), (4,), (8, 4), (99, 4)))
TABLE, ACTIVATION = tensor(99, 4), tensor(1, 4)
WEIGHTS = {
    TABLE: "embed_tokens.weight",
    NORM: "layers.3.input_layernorm.weight",
    MATRIX: "layers.3.mlp.up_proj.weight",
    NEXT_NORM: "layers.4.input_layernorm.weight",
    SECOND: "layers.4.mlp.up_proj.weight",
    HEAD: "lm_head.weight",
}
OPERATORS = {
    "lookup": {"kind": "embedding"},
    "near": {"kind": "decode_attention", "window": 32},
    "far": {"kind": "decode_attention", "window": None},
    "matmul": {"kind": "linear"},
    "experts": {"kind": "expert_linear"},
}
STEP: Sequence[tuple[str, tuple[object, ...]]] = (
    ("vm.builtin.alloc_tensor", (1,)),
    ("lookup", (TABLE, ACTIVATION)),
    ("gemma4_kv_key", (0,)),
    ("matmul", (NORM, MATRIX, ACTIVATION)),
    ("near", (ACTIVATION,)),
    ("matmul", (NORM, NEXT_NORM, SECOND, ACTIVATION)),
    ("shape_func1", ()),
    ("experts", (SECOND, ACTIVATION)),
    ("far", (ACTIVATION, 3)),
    ("of_tvm", (ACTIVATION,)),
    ("matmul", (NEXT_NORM, HEAD, ACTIVATION)),
)


SECONDS = [1.0, 2, 3, 4, 5, 6, 7, 8]


def test_a_step_is_shown_by_kernel() -> None:
    clock = Clock()
    weights = {one.data_ptr(): name for one, name in WEIGHTS.items()}
    kernels = {name: json.dumps(operator) for name, operator in OPERATORS.items()}
    times = StepTimes(clock, kernels, weights)
    for seconds in ([9.0] * 8, [1.0] * 8, SECONDS, SECONDS):
        clock.seconds = seconds
        for name, arguments in STEP:
            times(None, name, True, None, *arguments)
            times(None, name, False, None, *arguments)
        times.end_step()
    assert clock.marks == "<>" * 8 * 4
    floats = (4 + 32 + 4) + (4 + 4 + 32 + 4) + (4 + 99 * 4 + 4)
    assert times.table() == (
        KernelTime("matmul", "linear", "output, 1 sliding, 1 full", 3, 14.0, 4 * floats),
        KernelTime("of_tvm", "-", "1 full", 1, 7.0, None),
        KernelTime("far", "decode_attention", "1 full", 1, 6.0, None),
        KernelTime("experts", "expert_linear", "1 full", 1, 5.0, None),
        KernelTime("near", "decode_attention", "1 sliding", 1, 3.0, None),
        KernelTime("lookup", "embedding", "input", 1, 1.0, None),
    )

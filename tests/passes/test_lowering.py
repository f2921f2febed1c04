"""TVM's lowering of kernels: arrays that a kernel declares stay, those of a schedule shrink."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir.instrument import pass_instrument
from tvm.s_tir import Schedule
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import function
from gemma4_compile.passes.lowering import COMPACTION, device_pipeline
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import launch, local

SIZE = 256


@pass_instrument
class Names:
    """The passes that ran."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _module: tvm.IRModule, info: Any) -> None:
        self.names.append(info.name)


def scheduled() -> tirx.PrimFunc:
    """Two stages in one launch; the first one's array is as large as the whole tensor."""
    x = te.placeholder((SIZE,), "float32", name="x")
    first = te.compute((SIZE,), lambda i: x[i] + 1.0, name="first")
    second = te.compute((SIZE,), lambda i: first[i] * 2.0, name="second")
    schedule = Schedule(te.create_prim_func([x, second]))
    block, thread = schedule.split(schedule.get_loops("second")[0], factors=[None, 32])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.compute_at("first", thread)
    schedule.set_scope("first", 0, "local")
    return schedule.mod["main"]


def padded() -> tirx.PrimFunc:
    """A kernel of ours that uses all but the last element of an array."""
    with function(scheduled=True) as build:
        x = build.arg("x", (SIZE,), "float32")
        y = build.arg("y", (SIZE,), "float32")
        with launch(1, 64) as (_, _, thread):
            array = local((9,), "float32")
            for index in range(8):
                T.buffer_store(array, x[thread + index], [index])
            T.buffer_store(y, array[thread % 8], [thread])
    return build.result


def lower(func: tirx.PrimFunc) -> tuple[list[int], list[str]]:
    """Sizes of what a kernel allocates once it is lowered, and the passes that ran."""
    target = target_spec("webgpu").tvm_target()
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    lowering, _, _ = device_pipeline()
    instrument, sizes = Names(), []

    def visit(node: tirx.AllocBuffer) -> None:
        sizes.append(prod(int(extent) for extent in node.buffer.shape))

    with target, tvm.transform.PassContext(instruments=[instrument]):
        lowered = lowering(tirx.transform.BindTarget(target)(module))
    for _, found in lowered.functions_items():
        tvm_ffi.structural_walk(found.body, [(tirx.AllocBuffer, visit)], order="post")
    return sizes, instrument.names


def test_what_a_schedule_allocates_is_made_as_small_as_it_can_be() -> None:
    sizes, names = lower(scheduled())
    assert COMPACTION in names
    assert SIZE not in sizes


def test_a_kernel_of_ours_keeps_its_arrays() -> None:
    sizes, names = lower(padded())
    assert COMPACTION not in names
    assert "s_tir.LowerOpaqueBlock" in names
    assert sizes == [9]

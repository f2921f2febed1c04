"""CPU: operators' own kernels, or definitions as they are; loops around each block in parallel."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from gemma4_compile.operators.base import operator_of
from gemma4_compile.targets.kernels import make_host_kernel

_LLVM = "llvm"


class ParallelSpatialLoops(ScheduleRule):
    """Fuse and parallelise the spatial loops in front of each block's reduction."""

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """Schedule any function of sblocks for a CPU target; None for opaque loops and for GPUs."""
        if target.kind.name != _LLVM:
            return None
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if blocks is None:
            return None
        for block in blocks:
            _run_in_parallel(schedule, block.block_rv)
        return schedule


class HostKernels(ScheduleRule):
    """Take the operators that have a kernel for CPUs, no other.

    What a kernel leaves of the definition is blocks, whose spatial loops are as of
    `ParallelSpatialLoops`; loops of its own are no blocks and stay.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The kernel as a finished schedule, or None."""
        operator = operator_of(func) if target.kind.name == _LLVM else None
        kernel = None if operator is None else make_host_kernel(operator)
        if kernel is None:
            return None
        schedule = s_tir.Schedule(kernel.with_attr("global_symbol", "main"))
        root = schedule.get_sblock(kernel.body.block.name_hint)
        for block in schedule.get_child_blocks(root):
            _run_in_parallel(schedule, block)
        return schedule


def _run_in_parallel(schedule: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Fuse and parallelise a block's spatial loops, if they are in front of its others."""
    loops, variables = schedule.get_loops(block), schedule.get(block).iter_vars
    spatial = [
        loop
        for loop, variable in zip(loops, variables, strict=True)
        if variable.iter_type == tirx.IterVar.DataPar
    ]
    if spatial and loops[: len(spatial)] == spatial:
        schedule.parallel(schedule.fuse(*spatial))

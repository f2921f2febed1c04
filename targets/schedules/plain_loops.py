"""CPU: run the definitions as they are, the outermost spatial loop of each block in parallel."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target


class ParallelSpatialLoops(ScheduleRule):
    """Fuse and parallelise the spatial loops in front of each block's reduction."""

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """Schedule any function of sblocks for a CPU target; None for opaque loops and for GPUs."""
        if target.kind.name != "llvm":
            return None
        schedule = s_tir.Schedule(func)
        blocks = normalize_prim_func(schedule)
        if blocks is None:
            return None
        for block in blocks:
            loops = schedule.get_loops(block.block_rv)
            spatial = [
                loop for loop, kind in zip(loops, block.dom_kind(), strict=True) if kind == "S"
            ]
            if spatial and loops[: len(spatial)] == spatial:
                schedule.parallel(schedule.fuse(*spatial))
        return schedule

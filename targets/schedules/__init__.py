"""Dlight schedule rules and their order per target.

The first rule that takes a function schedules it.
"""

from __future__ import annotations

from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule

from gemma4_compile.targets.schedules.own_kernels import OwnKernels
from gemma4_compile.targets.schedules.plain_loops import HostKernels, ParallelSpatialLoops
from gemma4_compile.targets.spec import TargetSpec


def schedule_rules(spec: TargetSpec) -> tuple[ScheduleRule, ...]:
    """The rules for a target, in order."""
    if not spec.is_gpu:
        return HostKernels(), ParallelSpatialLoops()
    return (
        OwnKernels(spec),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )

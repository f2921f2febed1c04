"""The rule that replaces an operator's definition by the target's kernel of the same signature."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from gemma4_compile.operators.base import operator_of
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.spec import TargetSpec


class OwnKernels(ScheduleRule):
    """Take every function that carries an operator's description, no other."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec

    def apply(self, func: tirx.PrimFunc, _target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The kernel as a finished schedule, or None."""
        operator = operator_of(func)
        if operator is None:
            return None
        kernel = make_kernel(operator, self.spec).with_attr("global_symbol", "main")
        return s_tir.Schedule(kernel)

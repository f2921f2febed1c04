"""GPU kernels of the operators."""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.model_spec.operators.base import Operator
from gemma4_compile.targets.spec import TargetSpec


def make_kernel(operator: Operator, spec: TargetSpec) -> tirx.PrimFunc:
    raise NotImplementedError

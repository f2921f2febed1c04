"""Limits of fusion on a target: its buffers, shared memory and measured sizes as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm import relax

from gemma4_compile.operators.linear import Linear
from gemma4_compile.passes.operator_graph import OperatorCall
from gemma4_compile.targets.kernels.linear.normed_gemv import fused_width
from gemma4_compile.targets.spec import INT8, UNLIMITED, TargetSpec
from gemma4_compile.targets.tuning import FusionTuning


@dataclass(frozen=True)
class FusionLimits:
    """Limits of one kernel.

    Attributes
    ----------
    max_buffers : storage buffers, None for any number
    width : channels of the longest vector that a kernel may norm or quantise for itself
    int8 : activations are quantised to int8 where the weights allow it
    tuning : measured sizes
    """

    max_buffers: int | None
    width: int = UNLIMITED
    int8: bool = False
    tuning: FusionTuning = field(default_factory=FusionTuning)

    def binds(self, tensors: Sequence[relax.Expr], results: int) -> bool:
        """Return whether a kernel may bind these arguments and as many results."""
        return self.max_buffers is None or buffers(tensors) + results <= self.max_buffers


def buffers(args: Sequence[relax.Expr]) -> int:
    """Arguments that are bound buffers: all but scalars."""
    return sum(isinstance(arg.ty, relax.TensorType) for arg in args)


def fusion_limits(target: TargetSpec) -> FusionLimits:
    """The limits of a target."""
    int8, tuning = target.activations == INT8, target.tuning.fusion
    if not target.is_gpu:
        return FusionLimits(None, UNLIMITED, int8, tuning)
    return FusionLimits(target.max_storage_buffers, fused_width(target), int8, tuning)


def weight_count(call: OperatorCall[Linear]) -> int:
    """Weights of the matrix that a matmul reads."""
    layout = call.operator.layout
    return layout.rows * layout.cols

"""The head_dims that GPUs have attention kernels for."""

from __future__ import annotations

from gemma4_compile.errors import LoweringError
from gemma4_compile.targets.spec import TargetSpec

STEP = 8  # both halves of a head, which RoPE pairs, are vectors of four channels
MAX_HEAD_DIM = 512


def check_head_dim(head_dim: int, spec: TargetSpec) -> None:
    """Refuse heads that a GPU has no attention kernel for.

    Raises
    ------
    LoweringError
        The message says which there are, and the hint which target takes any.
    """
    if spec.is_gpu and (head_dim % STEP or head_dim > MAX_HEAD_DIM):
        raise LoweringError(
            f"head_dim {head_dim}: target `{spec.name}` has attention kernels for multiples of "
            f"{STEP} up to {MAX_HEAD_DIM}",
            hint="--target cpu takes every even head_dim",
        )

"""Kernels of the operators, each with the signature of its operator's definition."""

from __future__ import annotations

import logging
from functools import lru_cache

from tvm import tirx

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.base import Operator
from gemma4_compile.targets.kernels.select import select, select_host
from gemma4_compile.targets.spec import TargetSpec

_log = logging.getLogger(__name__)


@lru_cache(maxsize=1024)
def make_kernel(operator: Operator, spec: TargetSpec) -> tirx.PrimFunc:
    """The kernel of an operator under a target's limits.

    Raises
    ------
    LoweringError
        If there is none: an operator without a kernel would silently run as unscheduled loops.
    """
    try:
        factory = select(operator, spec)
    except KeyError:
        message = f"no `{spec.name}` kernel for operator `{operator.kind}`"
        raise LoweringError(message) from None
    _log.debug("%s, %s: %s for %s", spec.name, spec.limits, factory.__name__, operator.kind)
    return factory(operator, spec)


def make_host_kernel(operator: Operator) -> tirx.PrimFunc | None:
    """The kernel of an operator on a CPU; None where its definition runs there."""
    factory = select_host(operator)
    return None if factory is None else factory()

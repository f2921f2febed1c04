"""The rule that puts a target's kernel in the place of an operator's definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import tirx

from gemma4_compile.operators.base import Operator
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.schedules.own_kernels import OwnKernels
from gemma4_compile.targets.spec import TargetSpec
from tests.unit.targets.schedules.functions import OPERATORS, elementwise

WEBGPU, METAL = target_spec("webgpu"), target_spec("metal")


def kernel_of(operator: Operator, spec: TargetSpec = WEBGPU) -> tirx.PrimFunc:
    schedule = OwnKernels(spec).apply(operator.prim_func(), spec.tvm_target(), False)
    assert schedule is not None
    return schedule.mod["main"]


def signature(func: tirx.PrimFunc) -> list[str]:
    return [str(getattr(param, "dtype", param.ty)) for param in func.params]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.kind)
def test_kernel_has_the_signature_of_the_definition(operator: Operator) -> None:
    assert signature(kernel_of(operator)) == signature(operator.prim_func())


@pytest.mark.parametrize("spec", [WEBGPU, METAL], ids=lambda spec: spec.name)
def test_the_kernel_is_the_target_s_and_final(spec: TargetSpec) -> None:
    operator = OPERATORS[0]
    kernel = kernel_of(operator, spec)
    assert (
        kernel.script() == make_kernel(operator, spec).with_attr("global_symbol", "main").script()
    )
    assert kernel.attrs["tirx.is_scheduled"]
    assert "threadIdx.x" in kernel.script()


def test_the_kernel_keeps_to_the_limits_of_the_target() -> None:
    small = replace(WEBGPU, max_threads_per_block=32)
    assert kernel_of(OPERATORS[0], small).script() != kernel_of(OPERATORS[0]).script()


def test_other_functions_are_left_to_the_next_rule() -> None:
    assert OwnKernels(WEBGPU).apply(elementwise(), WEBGPU.tvm_target(), False) is None

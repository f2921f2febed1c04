"""Our kernels replace definitions, Dlight takes the rest, and nothing stays unscheduled."""

from __future__ import annotations

import pytest
import tvm
from tvm.s_tir import dlight

from gemma4_compile.operators.base import OPERATOR_ATTR, Operator, operator_of
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.schedules import schedule_rules
from gemma4_compile.targets.schedules.own_kernels import OwnKernels
from tests.unit.targets.schedules.functions import OPERATORS, elementwise

WEBGPU, METAL, CPU = map(target_spec, ("webgpu", "metal", "cpu"))


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.kind)
def test_description_survives_on_the_function(operator: Operator) -> None:
    assert operator_of(operator.prim_func()) == operator


@pytest.mark.parametrize("spec", [WEBGPU, METAL, CPU], ids=lambda spec: spec.name)
def test_everything_is_scheduled(spec: TargetSpec) -> None:
    functions = {f"op{i}": operator.prim_func() for i, operator in enumerate(OPERATORS)}
    module = tvm.IRModule({**functions, "other": elementwise()})
    with spec.tvm_target():
        after = dlight.ApplyDefaultSchedule(*schedule_rules(spec))(module)
    for var, func in after.functions_items():
        assert func.attrs["tirx.is_scheduled"], var.name_hint
        if spec.is_gpu:
            assert "threadIdx.x" in func.script(), var.name_hint
            assert OPERATOR_ATTR not in func.attrs, "the definition was kept"


def test_matrices_never_reach_dlights_rule() -> None:
    # On a float16 matrix for Metal that rule ends the process.
    rules = schedule_rules(METAL)
    assert isinstance(rules[0], OwnKernels)
    assert not any(isinstance(rule, dlight.gpu.Matmul) for rule in rules)

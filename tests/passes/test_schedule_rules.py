"""Our kernels replace definitions, Dlight takes the rest, and nothing stays unscheduled."""

from __future__ import annotations

import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import dlight

from gemma4_compile.operators.base import OPERATOR_ATTR, Operator, operator_of
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import RmsNorm, TakeLastRow
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.schedules import schedule_rules
from gemma4_compile.targets.schedules.own_kernels import OwnKernels
from gemma4_compile.targets.schedules.plain_loops import ParallelSpatialLoops

WEBGPU, METAL, CPU = map(target_spec, ("webgpu", "metal", "cpu"))
OPERATORS: list[Operator] = [
    RmsNorm(None, 64, 1e-6, "float16"),
    TakeLastRow(64, "float32"),
    Linear(1, WeightLayout(4, "float16", 32, 64, (64, 32)), "float16"),
    Linear(None, WeightLayout(8, "float32", 32, 64, (64,)), "float32", "gelu_gate", ple_width=256),
]


def elementwise() -> tirx.PrimFunc:
    """A function that carries no operator's description."""
    x = te.placeholder((128,), "float32", name="x")
    y = te.compute((128,), lambda i: x[i] + tirx.const(1.0, "float32"), name="y")
    return te.create_prim_func([x, y]).without_attr("global_symbol")


def signature(func: tirx.PrimFunc) -> list[str]:
    return [str(getattr(param, "dtype", param.ty)) for param in func.params]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.kind)
def test_kernel_has_the_signature_of_the_definition(operator: Operator) -> None:
    plain = operator.prim_func()
    schedule = OwnKernels(WEBGPU).apply(plain, WEBGPU.tvm_target(), False)
    assert schedule is not None
    assert signature(schedule.mod["main"]) == signature(plain)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.kind)
def test_description_survives_on_the_function(operator: Operator) -> None:
    assert operator_of(operator.prim_func()) == operator


def test_other_functions_are_left_to_the_next_rule() -> None:
    assert OwnKernels(WEBGPU).apply(elementwise(), WEBGPU.tvm_target(), False) is None
    assert operator_of(elementwise()) is None


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


def test_cpu_rule_runs_the_outer_loop_in_parallel_and_ignores_gpus() -> None:
    rule = ParallelSpatialLoops()
    assert rule.apply(elementwise(), WEBGPU.tvm_target(), False) is None
    schedule = rule.apply(elementwise(), CPU.tvm_target(), False)
    assert schedule is not None
    assert "T.parallel(128)" in schedule.mod["main"].script()


def test_matrices_never_reach_dlights_rule() -> None:
    # On a float16 matrix for Metal that rule ends the process.
    rules = schedule_rules(METAL)
    assert isinstance(rules[0], OwnKernels)
    assert not any(isinstance(rule, dlight.gpu.Matmul) for rule in rules)

"""Kernels that were lowered before are not lowered again, and come out as they did."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import Pass
from tvm.script.ir_builder import IRBuilder

from gemma4_compile.operators.tir import function, store
from gemma4_compile.passes import kernel_by_kernel
from gemma4_compile.passes.kernel_by_kernel import KernelByKernel
from gemma4_compile.passes.lowering import device_pipeline
from gemma4_compile.targets import webgpu
from gemma4_compile.targets.kernels.common.blocks import launch, local
from gemma4_compile.targets.spec import TargetSpec

ENTRY = "tirx.is_entry_func"


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_by_kernel, "_results", OrderedDict())
    monkeypatch.setattr(kernel_by_kernel, "_shared", OrderedDict())


def kernel(factor: float = 2.0, argument: str = "x", inner: str = "kept") -> tirx.PrimFunc:
    """``y = factor * x``, by way of an array of the thread's own."""
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (64,), "float32") for name in (argument, "y"))
        with launch(1, 64) as (_, _, thread):
            array = IRBuilder.name(inner, local((1,)))
            store(array, x[thread] * factor, 0)
            store(y, array[0], thread)
    return build.result


def module_of(spec: TargetSpec = webgpu.DEFAULT, /, **kernels: tirx.PrimFunc) -> tvm.IRModule:
    named = {name: each.with_attr("global_symbol", name) for name, each in kernels.items()}
    return tirx.transform.BindTarget(spec.tvm_target())(tvm.IRModule(named))


class Lowering:
    """TVM's lowering, and how often it has run."""

    def __init__(self) -> None:
        self.runs = 0
        self.by_kernel: Pass = KernelByKernel("a test", self._passes)

    def _passes(self) -> Pass:
        self.runs += 1
        return tirx_lowering()

    def __call__(self, module: tvm.IRModule) -> dict[str, str]:
        return texts(self.by_kernel(module))


def tirx_lowering() -> Pass:
    """All kernels of a module at once."""
    lowering, _, _ = device_pipeline()
    return lowering.passes()


def texts(module: tvm.IRModule) -> dict[str, str]:
    return {var.name_hint: str(func.script()) for var, func in module.functions_items()}


def test_kernels_come_out_as_all_of_a_module_do() -> None:
    module = module_of(first=kernel(), second=kernel(3.0), third=kernel(argument="z"))
    found = Lowering()(module)
    assert len(found) == 6, "a host function and a kernel of each"
    assert found == texts(tirx_lowering()(module))


def test_a_kernel_is_lowered_once() -> None:
    lowering = Lowering()
    before = lowering(module_of(first=kernel(), second=kernel(3.0)))
    assert lowering.runs == 2
    after = lowering(module_of(other=kernel(5.0), second=kernel(3.0)))
    assert lowering.runs == 3
    assert before["second_kernel"] == after["second_kernel"]
    assert before["second"] == after["second"]


@pytest.mark.parametrize("names", [{"argument": "z"}, {"inner": "z"}])
def test_kernels_of_other_names_are_others(names: dict[str, str]) -> None:
    lowering = Lowering()
    lowering(module_of(first=kernel(), second=kernel(3.0)))
    found = lowering(module_of(first=kernel(**names), second=kernel(3.0)))  # type: ignore[arg-type]
    assert lowering.runs == 3
    assert "z" in found["first_kernel"]
    assert found["first_kernel"] == texts(tirx_lowering()(module_of(first=kernel(**names))))[  # type: ignore[arg-type]
        "first_kernel"
    ].replace(f'"{ENTRY}": True, ', "")


def test_other_passes_other_settings_and_attributes_are_told_apart() -> None:
    module = module_of(first=kernel(), second=kernel(3.0))
    lowering = Lowering()
    lowering(module)
    another: Pass = KernelByKernel("another", lowering._passes)
    another(module)
    assert lowering.runs == 4
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        lowering(module)
    assert lowering.runs == 6
    lowering(module.with_attr("system_lib_prefix", "a"))
    assert lowering.runs == 8


def test_targets_that_differ_by_their_subgroups_share_kernels() -> None:
    lowering, kernels = Lowering(), {"first": kernel(), "second": kernel(3.0)}
    lowering(module_of(**kernels))
    for spec in (webgpu.SUBGROUPS, *webgpu.SMALLER_SUBGROUPS):
        module = module_of(spec, **kernels)
        assert lowering(module) == texts(tirx_lowering()(module)), spec.limits
    assert lowering.runs == 2


def test_other_limits_of_a_target_are_told_apart() -> None:
    lowering, kernels = Lowering(), {"first": kernel(), "second": kernel(3.0)}
    lowering(module_of(**kernels))
    lowering(module_of(webgpu.COMPAT, **kernels))
    assert lowering.runs == 4


def summed() -> tirx.PrimFunc:
    """The sum of 64 numbers by as many threads, which TVM writes by the size of subgroups."""
    x = te.placeholder((64,), "float32", "x")
    k = te.reduce_axis((0, 64), "k")
    schedule = s_tir.Schedule(te.create_prim_func([x, te.compute((1,), lambda _: te.sum(x[k], k))]))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    (outer, inner) = schedule.get_loops(block)
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return schedule.mod["main"]


def test_kernels_that_tvm_writes_by_their_subgroups_are_told_apart() -> None:
    lowering = Lowering()
    found = [
        lowering(module_of(spec, first=summed(), second=kernel()))["first_kernel"]
        for spec in (webgpu.DEFAULT, webgpu.SUBGROUPS)
    ]
    assert lowering.runs == 3, "`second` is shared"
    assert ["tvm_warp_shuffle" in text for text in found] == [False, True]


def test_no_kernel_is_taken_for_the_only_one_of_its_module() -> None:
    by_kernel: Pass = KernelByKernel("a test", tirx_lowering)
    found = by_kernel(module_of(a=kernel(), b=kernel(3.0)))
    assert not any(ENTRY in func.attrs for _, func in found.functions_items())
    alone = by_kernel(module_of(a=kernel()))
    assert any(ENTRY in func.attrs for _, func in alone.functions_items())


def test_parts_whose_names_meet_are_made_together() -> None:
    module = module_of(a=kernel(), a_kernel=kernel(3.0))
    found = Lowering()(module)
    assert len(found) == 4
    assert found == texts(tirx_lowering()(module))


def test_who_watches_passes_sees_them() -> None:
    seen: list[str] = []

    @pass_instrument
    class Watching:
        def run_before_pass(self, _module: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
            seen.append(info.name)

    lowering, module = Lowering(), module_of(a=kernel(), b=kernel(3.0))
    lowering(module)
    with tvm.transform.PassContext(instruments=[Watching()]):
        lowering(module)
    assert "tirx.SplitHostDevice" in seen


def test_the_last_used_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_by_kernel, "KEPT", 3)
    lowering = Lowering()
    for name, factor in (("a", 2.0), ("c", 5.0), ("d", 7.0), ("c", 5.0)):
        lowering(module_of(**{name: kernel(factor), "b": kernel(3.0)}))
    assert lowering.runs == 4, "a, b, c and d"
    lowering(module_of(a=kernel(2.0), b=kernel(3.0)))
    assert lowering.runs == 5, "`a` was used longest ago"

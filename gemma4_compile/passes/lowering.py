"""The ordered list of passes, in named phases: from the model's module to kernels."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.ir.transform import Pass
from tvm.s_tir import dlight

from gemma4_compile.passes.check_limits import check_limits
from gemma4_compile.passes.order_shape_functions import OrderShapeFunctions
from gemma4_compile.passes.vector_buffers import PIPELINE
from gemma4_compile.targets.schedules import schedule_rules
from gemma4_compile.targets.spec import DeviceType, TargetSpec


def graph_passes() -> Sequence[Pass]:
    """Turn graph operators into kernels and fuse the small ones; ours are opaque to it."""
    return (
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        relax.transform.RewriteDataflowReshape(),  # reads sblocks, so it stands before scheduling
    )


def kernel_passes(spec: TargetSpec) -> Sequence[Pass]:
    """Schedule every kernel."""
    return (dlight.ApplyDefaultSchedule(*schedule_rules(spec)),)


def virtual_machine_passes() -> Sequence[Pass]:
    """Make calls destination-passing, plan memory, lower to the VM.

    TVM's default pipeline is not used: it would fuse kernels that are already scheduled, and the
    result binds one buffer for reading and for writing, which WebGPU refuses.
    """
    return (
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        OrderShapeFunctions(),  # TVM orders them by address, and the library must not depend on it
        relax.transform.AttachGlobalSymbol(),
    )


def lower(module: tvm.IRModule, spec: TargetSpec) -> tvm.IRModule:
    """Run the graph and kernel phases: all kernels scheduled and within the limits.

    Raises
    ------
    LoweringError
        If a kernel breaks a limit; the message names it.
    """
    with spec.tvm_target():
        lowered = tvm.transform.Sequential([*graph_passes(), *kernel_passes(spec)])(module)
    check_limits(lowered, spec)
    return lowered


def generate(module: tvm.IRModule, spec: TargetSpec) -> relax.VMExecutable:
    """Turn a lowered module into the code that `targets.link` makes a library of."""
    target = spec.tvm_target()
    is_webgpu = spec.device_type is DeviceType.WEBGPU
    with target:
        return relax.build(
            module,
            target=target,
            relax_pipeline=tvm.transform.Sequential(list(virtual_machine_passes())),
            tir_pipeline=PIPELINE if spec.is_gpu else "default",
            system_lib=is_webgpu,
        )

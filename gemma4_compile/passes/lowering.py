"""The ordered list of passes, in named phases: from the model's module to kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.s_tir import dlight
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.s_tir.stmt import SBlock
from tvm.tirx import compilation_pipeline

from gemma4_compile.passes.check_limits import check_limits
from gemma4_compile.passes.check_tensors import CheckTensors, skip_asserts
from gemma4_compile.passes.halves_as_words import HalvesAsWords
from gemma4_compile.passes.kernel_by_kernel import KernelByKernel
from gemma4_compile.passes.names import DropUnusedNames, NameCommonExpressions
from gemma4_compile.passes.order_shape_functions import OrderShapeFunctions
from gemma4_compile.passes.shorten_contexts import ShortenContexts
from gemma4_compile.passes.submit_towers import SubmitTowers
from gemma4_compile.passes.vectorize_buffers import VectorizeBuffers
from gemma4_compile.targets import TARGETS
from gemma4_compile.targets.schedules import schedule_rules
from gemma4_compile.targets.spec import NATIVE, WORDS, TargetSpec

COMPACTION = "s_tir.CompactBufferAllocation"


def graph_passes() -> Sequence[Pass]:
    """Turn graph operators into kernels and fuse the small ones; ours are opaque to it."""
    return (
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        relax.transform.RewriteDataflowReshape(),  # reads sblocks, so it comes before scheduling
    )


def kernel_passes(spec: TargetSpec) -> Sequence[Pass]:
    """Schedule every kernel."""
    return (dlight.ApplyDefaultSchedule(*schedule_rules(spec)),)


def virtual_machine_passes(spec: TargetSpec) -> Sequence[Pass]:
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
        *((SubmitTowers(),) if spec.gathers_launches else ()),
        CheckTensors(int(spec.device_type)),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        ShortenContexts(),
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


def device_passes(target: str, float16: str = NATIVE) -> Sequence[Pass]:
    """The last passes of a GPU's kernels: TVM's own, and ours.

    TVM's search for common expressions comes too early to be of use.
    """
    return (
        tirx.transform.LowerWarpMemory(),
        tirx.transform.StmtSimplify(),  # inlines names
        *TARGETS[target].passes(),
        *((HalvesAsWords(),) if float16 == WORDS else ()),
        VectorizeBuffers(),
        DropUnusedNames(),
        NameCommonExpressions(),
        DropUnusedNames(),
        tirx.transform.LowerIntrin(),
    )


def host_pipeline() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """TVM's own lowering of kernels, without checks of their arguments."""
    lowering, host, device = default_s_tir_pipeline()
    return tvm.transform.Sequential([lowering, skip_asserts()]), host, device


def device_pipeline(
    target: str = "webgpu", float16: str = NATIVE
) -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """TVM's own lowering of kernels, with our passes before the generation of code."""
    lowering, host, _ = host_pipeline()

    @tvm.transform.module_pass(opt_level=0, name="LowerKernels")
    def lower_kernels(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        if _blocks_allocate(module):
            return lowering(module)
        # A quarter of the time of a compilation, for arrays that our kernels declare as they want
        # them: the pass is there for what schedules allocate.
        with tvm.transform.PassContext(
            opt_level=context.opt_level,
            required_pass=context.required_pass,
            disabled_pass=[*context.disabled_pass, COMPACTION],
            instruments=context.instruments,
            config=context.config,
        ):
            return lowering(module)

    def device() -> Pass:
        return tvm.transform.Sequential(list(device_passes(target, float16)))

    return (
        KernelByKernel("lowering", lambda: lower_kernels),
        host,
        lambda: KernelByKernel(f"device passes of {target}, {float16}", device),
    )


def _blocks_allocate(module: tvm.IRModule) -> bool:
    """Return whether a block of a scheduled function has a buffer of its own."""
    found = False

    def visit(block: SBlock) -> None:
        nonlocal found
        found = found or bool(block.alloc_buffers)

    for _, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, [(SBlock, visit)], order="post")
    return found


def tir_pipeline(spec: TargetSpec) -> str:
    """The name that TVM knows the lowering of a target's kernels by."""
    name, pipeline = "gemma4_host", host_pipeline
    if spec.is_gpu:
        name = f"gemma4_{spec.name}_{spec.float16}"
        pipeline = partial(device_pipeline, spec.name, spec.float16)
    compilation_pipeline.register_tir_pipeline(name, pipeline)
    return name


def generate(module: tvm.IRModule, spec: TargetSpec) -> relax.VMExecutable:
    """Turn a lowered module into the code that `targets.link` makes a library of."""
    target = spec.tvm_target()
    with target:
        return relax.build(
            module,
            target=target,
            relax_pipeline=tvm.transform.Sequential(list(virtual_machine_passes(spec))),
            tir_pipeline=tir_pipeline(spec),
            system_lib=spec.is_static,
        )

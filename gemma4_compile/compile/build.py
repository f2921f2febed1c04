"""Build a model library from the config: export, lower, generate code, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.transform import Pass

from gemma4_compile import abi
from gemma4_compile.device_check.known_answers import known_answers
from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.media.sizes import CLIENT_BLOCKS, DEFAULT_BUDGET
from gemma4_compile.model_spec.component import Component, ExportOptions, model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.export import export_module
from gemma4_compile.operators.base import description_of
from gemma4_compile.passes.attach_metadata import AttachMetadata
from gemma4_compile.passes.check_limits import kernel_use
from gemma4_compile.passes.fuse import fuse
from gemma4_compile.passes.fusion_limits import attention_options, kv_limits
from gemma4_compile.passes.kernel_sources import kernel_sources
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.passes.watched import AfterPass, watched
from gemma4_compile.quantization.matrix import StoredMatrices
from gemma4_compile.quantization.recipe import Recipe, StoredParameter, storage_plan
from gemma4_compile.targets.spec import TargetSpec

SOFTMAX_BLOCKS = 64


@dataclass(frozen=True)
class LibraryOptions:
    """User options that shape the library.

    Attributes
    ----------
    context_length : longest sequence that the chat config announces
    prefill_chunk : longest prefill chunk
    metadata : what `_metadata` returns, besides the descriptions of the kernels
    suppressed : ids of tokens that the model must not emit
    dump : called with a name and the module's text after each phase, or None
    dump_each : called so after every pass, in place of every phase
    dump_kernel : called with a file's name and the text of a kernel for its device, or None
    probe : the forward functions return the residual stream after every layer, too
    package : names the package whose keys and values a checkpoint of the KV state holds
    image_rows : rows of a picture, at most
    client_blocks : across and down of the stock client's picture
    """

    context_length: int
    prefill_chunk: int
    metadata: Mapping[str, object]
    suppressed: tuple[int, ...] = ()
    dump: Callable[[str, str], None] | None = None
    dump_each: bool = False
    dump_kernel: Callable[[str, str], None] | None = None
    probe: bool = False
    package: str = ""
    image_rows: int = DEFAULT_BUDGET
    client_blocks: tuple[int, int] = CLIENT_BLOCKS


@dataclass(frozen=True)
class LibraryReport:
    """Built: distinct kernels, launches of one decoded token, the largest bound buffer.

    `decodes` : without, it is an encoder, and the launches are those of a call
    """

    kernels: int
    launches_per_token: int
    largest_binding_bytes: int
    decodes: bool = True


def decoder_options(
    recipe: Recipe,
    target: TargetSpec,
    prefill_chunk: int,
    suppressed: tuple[int, ...] = (),
    *,
    probe: bool = False,
    package: str = "",
    context_length: int | None = None,
) -> ExportOptions:
    """The decoder's options for a recipe and a target.

    `context_length` : of which a binding of the target may hold a part only; None for any
    """
    return ExportOptions(
        activation_dtype=recipe.activation_dtype,
        prefill_chunk=prefill_chunk,
        device_type=int(target.device_type),
        attention=attention_options(target, recipe.activation_dtype),
        suppressed=suppressed,
        probe=probe,
        package=package,
        softmax_blocks=SOFTMAX_BLOCKS,
        draws_by_masses=target.adds_atomically,
        pads_pictures=target.pads_pictures,
        pads_texts=is_of_pages(target.device),
        joins_sequences=target.joins_sequences,
        slots_apart=target.slots_apart,
        # As one token's are everywhere: on a CPU both have the same bits.
        routed_dtype=None if target.is_gpu else "float32",
        kv_limits=kv_limits(target, context_length),
    )


def build_module(
    config: Gemma4Config,
    recipe: Recipe,
    target: TargetSpec,
    options: ExportOptions,
    plan: Sequence[StoredParameter] | None = None,
    components: Sequence[Component] = ALL_COMPONENTS,
    after: AfterPass | None = None,
) -> tvm.IRModule:
    """The model's exported functions with the fusions of a target.

    Parameters
    ----------
    options : made by `decoder_options`
    plan : the storage plan; without it, that of the recipe with the target's binding limit
    after : is given the exported module, and then what each fusion leaves
    """
    if plan is None:
        plan = storage_plan(model_parameters(config, components), recipe, target.max_binding_bytes)
    exported = export_module(config, StoredMatrices(plan), options, components)
    planned = tuple(tensor.name for stored in plan for tensor in stored.tensors)
    assert exported.parameters == planned, (
        "the modules declare their parameters in the order of the storage plan"
    )
    if after is not None:
        after("export", exported.module)
    return fuse(exported.module, target, after)


def calls_of(module: tvm.IRModule, function: str) -> list[str]:
    """Names of the kernels that an exported function launches, in order."""
    names: list[str] = []
    launching = tuple(map(tvm.ir.Op.get, ("relax.call_tir", "relax.call_tir_inplace")))

    def visit(call: tvm.ir.Call) -> None:
        if call.op in launching:
            names.append(call.args[0].name_hint)

    tvm_ffi.structural_walk(module[function].body, [(tvm.ir.Call, visit)], order="post")
    return names


def kernel_descriptions(module: tvm.IRModule) -> dict[str, str]:
    """The operator of each kernel that has one, as JSON text, by the kernel's name.

    They are part of the library's metadata, so that a device can be checked against definitions.
    """
    described = {
        var.name_hint: description_of(func)
        for var, func in module.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    return {name: text for name, text in described.items() if text is not None}


def library_report(module: tvm.IRModule) -> LibraryReport:
    """Read a lowered module."""
    uses = {
        var.name_hint: kernel_use(var.name_hint, func)
        for var, func in module.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    decodes = any(var.name_hint == abi.DECODE for var, _ in module.functions_items())
    return LibraryReport(
        kernels=len(uses),
        launches_per_token=len(calls_of(module, abi.DECODE if decodes else abi.EMBED_TEXTS)),
        decodes=decodes,
        largest_binding_bytes=max(use.largest_binding_bytes for use in uses.values()),
    )


def build_executable(
    config: Gemma4Config,
    plan: Sequence[StoredParameter],
    recipe: Recipe,
    target: TargetSpec,
    options: LibraryOptions,
) -> tuple[relax.VMExecutable, LibraryReport]:
    """Compile the model for a target.

    Parameters
    ----------
    plan : the storage plan, made with the target's binding limit

    Returns
    -------
    tuple[VMExecutable, LibraryReport]
        What `targets.<name>.link` turns into a library, and what it holds.

    Raises
    ------
    LoweringError
        If a kernel breaks a limit of the target.
    """

    def dump(name: str, module: tvm.IRModule) -> None:
        if options.dump:  # the text of a whole module takes half a second
            options.dump(name, module.script())

    each = dump if options.dump_each else None
    phase = None if options.dump_each else dump

    decoder = decoder_options(
        recipe,
        target,
        options.prefill_chunk,
        options.suppressed,
        probe=options.probe,
        package=options.package,
        context_length=options.context_length,
    )
    exports = replace(decoder, image_rows=options.image_rows, client_blocks=options.client_blocks)
    module = build_module(config, recipe, target, exports, plan, after=each)
    kernels = kernel_descriptions(module)
    metadata = {**options.metadata, "kernels": kernels}
    if phase:
        phase("model", module)
    with watched(each):
        module = lower(module, target)
    if target.known_answers and not options.probe:
        metadata["known_answers"] = known_answers(module, kernels, target, options.prefill_chunk)
    attach: Pass = AttachMetadata(json.dumps(metadata, sort_keys=True))
    module = attach(module)
    if phase:
        phase("kernels", module)
    report = library_report(module)
    with watched(each):
        executable = generate(module, target)
    if options.dump_kernel:
        for file, text in kernel_sources(executable, target).items():
            options.dump_kernel(file, text)
    return executable, report

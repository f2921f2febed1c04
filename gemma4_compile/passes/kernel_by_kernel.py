"""Passes that run on one kernel at a time, and not again where a kernel has been seen before.

Most kernels of a library occur in another one of the same package, and those with known answers are
lowered twice for one library. What passes make of a kernel is kept and given again for the same
kernel: equal in structure and in every name, for names are part of the code. Targets that differ by
their subgroups alone share a kernel for which TVM does not ask for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import Pass, PassContext, module_pass
from tvm.s_tir.stmt import SBlock
from tvm.target import Target

KEPT = 1024
"""Results that are kept, the last used ones: nine libraries of the largest model have fewer."""
_ALLREDUCE = tvm.ir.Op.get("tirx.tvm_thread_allreduce")
_TARGET, _HOST = "target", "host"
_SUBGROUPS = frozenset({"thread_warp_size", "supports_subgroups"})
"""Attributes of a target that TVM's passes read to reduce over threads and for memory of a warp."""
_ENTRY = "tirx.is_entry_func"  # TVM's mark of the only function of a module, which it is not here

_Functions = tuple[tuple[str, tirx.PrimFunc], ...]


@dataclass(frozen=True)
class _Key:
    """A function with its names, and what is done to it.

    Attributes
    ----------
    target : what counts of a target that the function is without
    """

    passes: str
    function: tvm_ffi.StructuralKey
    names: tuple[str, ...]
    attributes: tvm_ffi.StructuralKey
    context: Hashable
    target: Hashable = None


_results: OrderedDict[_Key, _Functions] = OrderedDict()
_shared: OrderedDict[_Key, _Functions] = OrderedDict()
"""Those of kernels without their target."""


@module_pass(opt_level=0, name="KernelByKernel")
class KernelByKernel:
    """Before and after: as `passes` leave a module of one kernel, for each kernel of the module.

    Attributes
    ----------
    name : of the passes; equal names must mean equal passes
    passes : called for the passes when they are needed
    """

    def __init__(self, name: str, passes: Callable[[], Pass]) -> None:
        self.name, self.passes = name, passes

    def transform_module(self, mod: tvm.IRModule, context: PassContext) -> tvm.IRModule:
        """Replace the kernels, and split them where the passes do."""
        if len(mod.functions) < 2 or context.instruments:  # which are to see every pass
            return self.passes()(mod)
        found: dict[str, tirx.PrimFunc] = {}
        count = 0
        attributes, settings = _structure(mod.attrs), _settings(context)
        for var, func in mod.functions_items():
            names = (var.name_hint, *_names(func))
            key = _Key(self.name, _structure(func), names, attributes, settings)
            for name, made in self._made(key, func, mod):
                found[name] = made
                count += 1
        if count != len(found):  # a part of one kernel has the name of another one
            return self.passes()(mod)
        return tvm.IRModule(found, attrs=mod.attrs)

    def _made(self, key: _Key, func: tirx.PrimFunc, mod: tvm.IRModule) -> _Functions:
        made = _kept(_results, key)
        if made is not None:
            return made
        shared = _without_subgroups(key, func)
        of_another = None if shared is None else _kept(_shared, shared)
        if of_another is not None:
            made = _retargeted(of_another, func.attrs[_TARGET])
        else:
            name, *_ = key.names
            result = self.passes()(tvm.IRModule({name: func}, attrs=mod.attrs))
            made = tuple(
                (var.name_hint, one.without_attr(_ENTRY)) for var, one in result.functions_items()
            )
            if shared is not None:
                _keep(_shared, shared, made)
        _keep(_results, key, made)
        return made


def _kept(results: OrderedDict[_Key, _Functions], key: _Key) -> _Functions | None:
    made = results.get(key)
    if made is not None:
        results.move_to_end(key)
    return made


def _keep(results: OrderedDict[_Key, _Functions], key: _Key, made: _Functions) -> None:
    results[key] = made
    while len(results) > KEPT:
        results.popitem(last=False)


def _without_subgroups(key: _Key, func: tirx.PrimFunc) -> _Key | None:
    """The key for all targets that differ by their subgroups, or None where these matter."""
    if _TARGET not in func.attrs or _asks_for_subgroups(func):
        return None
    counts = {
        name: str(value)
        for name, value in func.attrs[_TARGET].export().items()
        if name not in _SUBGROUPS
    }
    structure = _structure(func.without_attr(_TARGET))
    return replace(key, function=structure, target=tuple(sorted(counts.items())))


def _asks_for_subgroups(func: tirx.PrimFunc) -> bool:
    """Return whether passes look at a target's subgroups to lower a function."""
    found = False

    def visit_block(block: SBlock) -> None:
        nonlocal found
        found = found or any(var.iter_type == tirx.IterVar.CommReduce for var in block.iter_vars)
        for buffer in block.alloc_buffers:
            visit_buffer(buffer)

    def visit_buffer(buffer: tirx.Buffer) -> None:
        nonlocal found
        found = found or buffer.scope().startswith("warp")

    def visit_call(call: tvm.ir.Call) -> None:
        nonlocal found
        found = found or call.op == _ALLREDUCE

    entries = [
        (SBlock, visit_block),
        (tirx.AllocBuffer, lambda node: visit_buffer(node.buffer)),
        (tvm.ir.Call, visit_call),
    ]
    tvm_ffi.structural_walk(func.body, entries, order="pre")
    return found


def _retargeted(made: _Functions, target: Target) -> _Functions:
    """What was made for another target, for this one; what is of the host stays."""
    options = {name: value for name, value in target.export().items() if name != _HOST}
    device = Target(options)
    return tuple(
        (name, one.with_attr(_TARGET, device))
        if one.attrs[_TARGET].kind.name == device.kind.name
        else (name, one)
        for name, one in made
    )


def _structure(value: object) -> tvm_ffi.StructuralKey:
    return tvm_ffi.StructuralKey(value)  # type: ignore[call-arg]  # its stub is of its fields


def _names(func: tirx.PrimFunc) -> list[str]:
    """Of parameters, variables and buffers, in their order."""
    found = [*func.params]
    tvm_ffi.structural_walk(func.body, [(tirx.Var, found.append)], order="pre")
    return [var.name for var in found]


def _settings(context: PassContext) -> Hashable:
    return (
        int(context.opt_level),
        tuple(context.required_pass),
        tuple(context.disabled_pass),
        tuple(sorted((str(name), str(value)) for name, value in context.config.items())),
    )

"""Passes that run on one kernel at a time, and not again where a kernel has been seen before.

Most kernels of a library occur in another one of the same package, and those with known answers are
lowered twice for one library. What passes make of a kernel is kept and given again for the same
kernel: equal in structure and in every name, for names are part of the code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import Pass, PassContext, module_pass

KEPT = 1024
"""Results that are kept, the last used ones: nine libraries of the largest model have fewer."""
_ENTRY = "tirx.is_entry_func"  # TVM's mark of the only function of a module, which it is not here

_Functions = tuple[tuple[str, tirx.PrimFunc], ...]


@dataclass(frozen=True)
class _Key:
    """A function with its names, and what is done to it."""

    passes: str
    function: tvm_ffi.StructuralKey
    names: tuple[str, ...]
    attributes: tvm_ffi.StructuralKey
    context: Hashable


_results: OrderedDict[_Key, _Functions] = OrderedDict()


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
        for var, func in mod.functions_items():
            for name, made in self._made(var.name_hint, func, mod, context):
                found[name] = made
                count += 1
        if count != len(found):  # a part of one kernel has the name of another one
            return self.passes()(mod)
        return tvm.IRModule(found, attrs=mod.attrs)

    def _made(
        self, name: str, func: tirx.PrimFunc, mod: tvm.IRModule, context: PassContext
    ) -> _Functions:
        key = _Key(
            self.name,
            _structure(func),
            (name, *_names(func)),
            _structure(mod.attrs),
            _settings(context),
        )
        made = _results.get(key)
        if made is None:
            result = self.passes()(tvm.IRModule({name: func}, attrs=mod.attrs))
            made = tuple(
                (var.name_hint, one.without_attr(_ENTRY)) for var, one in result.functions_items()
            )
            _results[key] = made
            while len(_results) > KEPT:
                _results.popitem(last=False)
        _results.move_to_end(key)
        return made


def _structure(value: object) -> tvm_ffi.StructuralKey:
    return tvm_ffi.StructuralKey(value)  # type: ignore[call-arg]  # its stub is of its fields


def _names(func: tirx.PrimFunc) -> list[str]:
    """Of parameters, variables and buffers, in their order."""
    names = [param.name for param in func.params]

    def visit(node: tirx.Var) -> None:
        names.append(node.name)

    tvm_ffi.structural_walk(func.body, [(tirx.Var, visit)], order="pre")
    return names


def _settings(context: PassContext) -> Hashable:
    return (
        int(context.opt_level),
        tuple(context.required_pass),
        tuple(context.disabled_pass),
        tuple(sorted((str(name), str(value)) for name, value in context.config.items())),
    )

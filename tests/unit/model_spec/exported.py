"""Parts of the model as one exported function, to look at its operators or to run it on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.kv_cache import KvLayout
from gemma4_compile.model_spec.text.kv_layout import kv_layout
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.operators.base import Operator, operator_of
from gemma4_compile.quantization.matrix import StoredMatrices
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from tests.models import config_file

STATE = nn.spec.Object(object_type=nn.Object)
Array = np.ndarray


def tensor(*shape: int | str, dtype: str = "float32") -> nn.spec.Tensor:
    return nn.spec.Tensor(list(shape), dtype)


def config_of(text: Mapping[str, Any]) -> Gemma4Config:
    return Gemma4Config.from_dict(config_file(text, "hub", "float32"))


def layout_of(text: dict[str, Any], dtype: str = "float16", chunk: int = 16) -> KvLayout:
    config = config_of(text)
    return kv_layout(config, layer_plans(config), dtype, chunk)


def matrices_of(config: Gemma4Config, recipe: str = "f32") -> StoredMatrices:
    return StoredMatrices(storage_plan(parameter_table(config), RECIPES[recipe], None))


class _Function(nn.Module):
    def __init__(self, parts: Sequence[nn.Module], body: Callable[..., object]) -> None:
        self.parts = nn.ModuleList(list(parts))
        self.forward = body


def exported(
    parts: Sequence[nn.Module], body: Callable[..., object], **inputs: object
) -> tvm.IRModule:
    """`forward`: what `body` makes of its inputs and of the parameters of `parts`."""
    mode = {"param_mode": "packed", "effect_mode": "none"}
    module, _ = _Function(parts, body).export_tvm({"forward": {**inputs, "$": mode}})
    return module


def operators(module: tvm.IRModule, function: str = "forward") -> list[Operator]:
    """The operators that a function calls, in order."""
    kinds = list(map(tvm.ir.Op.get, ("relax.call_tir", "relax.call_tir_inplace")))
    found = []
    for block in module[function].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and value.op in kinds:
                operator = operator_of(module[value.args[0].name_hint])
                if operator is not None:
                    found.append(operator)
    return found


def kinds(module: tvm.IRModule, function: str = "forward") -> list[str]:
    return [operator.variant for operator in operators(module, function)]


def run(
    module: tvm.IRModule, *args: Array | Sequence[Array], function: str = "forward"
) -> list[Array]:
    """Results on the CPU; the parameters are the last argument, as a list."""
    vm = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    given = [
        tvm.runtime.tensor(arg)
        if isinstance(arg, np.ndarray)
        else [tvm.runtime.tensor(one) for one in arg]
        for arg in args
    ]
    result = vm[function](*given)
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [one.numpy() for one in results]


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rms_normed(x: Array, weight: Array | float, eps: float = 1e-6) -> Array:
    result: Array = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + eps) * weight
    return result

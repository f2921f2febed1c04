"""Functions of several components in one module, on one tuple of all parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.component import (
    ActivationMemory,
    Component,
    Exported,
    ExportOptions,
)
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.export import export_module
from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.model_spec.layers.norm import Vector, rms_norm
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.quantization.matrix import StoredMatrices
from tests.models import E2B_LIKE, config_file

CONFIG = Gemma4Config.from_dict(config_file(E2B_LIKE, "hub", "float32"))
OPTIONS = ExportOptions("float32", 8, 1, AttentionOptions(1, 1))
MATRICES = StoredMatrices([])


class Scaled(nn.Module):
    """Norms by the second of two weights, of some width, so that order and place count."""

    def __init__(self, width: int) -> None:
        self.unread = Vector(width)
        self.read = Vector(width)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return rms_norm(x, self.read.weight, 1e-6, "float32")

    def double(self, x: nn.Tensor) -> nn.Tensor:
        return nn.op.add(x, x)


def component(name: str, width: int, is_there: bool = True) -> Component:
    names = (f"{name}.unread", f"{name}.read")

    def parameters(config: Gemma4Config) -> tuple[Parameter, ...]:
        del config
        if not is_there:
            return ()
        return tuple(
            Parameter(part, Role.VECTOR, (width,), (Source(part, (width,)),)) for part in names
        )

    def export(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
        assert (config, matrices, options) == (CONFIG, MATRICES, OPTIONS)
        assert is_there, "the config has no such part"
        x = nn.spec.Tensor([1, width], "float32")
        made, _ = Scaled(width).export_tvm(
            {
                "forward": {"x": x, "$": {"param_mode": "packed", "effect_mode": "none"}},
                "double": {"x": x, "$": {"param_mode": "none", "effect_mode": "none"}},
            }
        )
        kernels, functions = {}, {}
        for var, func in made.functions_items():
            if isinstance(func, relax.Function):
                functions[f"{name}_{var.name_hint}"] = func
            else:
                kernels[var] = func
        module = tvm.IRModule(kernels)
        for function, func in functions.items():
            module[function] = func.with_attr("global_symbol", function)
        return Exported(module, names)

    memory = ActivationMemory((), ())
    return Component(name, (f"{name}.",), parameters, export, lambda config, dtype: memory)


def exported(*components: Component) -> Exported:
    return export_module(CONFIG, MATRICES, OPTIONS, components)


def shapes(function: relax.Function) -> list[list[int]]:
    return [[int(size) for size in field.shape] for field in function.params[-1].ty.fields]


def values(width: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(width)
    return [rng.normal(size=width).astype(np.float32) for _ in range(count)]


def run(module: tvm.IRModule, name: str, *args: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    vm = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    given = [
        tvm.runtime.tensor(arg)
        if isinstance(arg, np.ndarray)
        else [tvm.runtime.tensor(one) for one in arg]
        for arg in args
    ]
    result: np.ndarray = vm[name](*given).numpy()
    return result


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean() + 1e-6) * weight


def test_every_function_takes_the_parameters_of_all_in_their_order() -> None:
    made = exported(component("a", 4), component("b", 6))
    assert made.parameters == ("a.unread", "a.read", "b.unread", "b.read")
    for name in ("a_forward", "b_forward"):
        assert shapes(made.module[name]) == [[4], [4], [6], [6]]
    relax.analysis.well_formed(made.module)


@pytest.mark.parametrize(("name", "width", "place"), [("a", 4, 1), ("b", 6, 3)])
def test_each_reads_its_own_parameters(name: str, width: int, place: int) -> None:
    made = exported(component("a", 4), component("b", 6))
    params = [*values(4, 2), *values(6, 2)]
    (x,) = values(width, 1)
    found = run(made.module, f"{name}_forward", x[None], params)
    np.testing.assert_allclose(found[0], normed(x, params[place]), rtol=1e-5)


def test_kernels_of_one_name_stay_apart() -> None:
    module = exported(component("a", 4), component("b", 6)).module
    kernels = [func for _, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert len(kernels) == 2


def test_a_function_without_parameters_gets_none() -> None:
    module = exported(component("a", 4), component("b", 6)).module
    assert [len(module[name].params) for name in ("a_double", "b_double")] == [1, 1]
    (x,) = values(6, 1)
    np.testing.assert_array_equal(run(module, "b_double", x[None])[0], 2 * x)


def test_a_component_that_the_config_lacks_is_not_exported() -> None:
    alone = exported(component("a", 4))
    made = exported(component("a", 4), component("b", 6, is_there=False))
    assert made.parameters == alone.parameters == ("a.unread", "a.read")
    tvm.ir.assert_structural_equal(made.module, alone.module, map_free_vars=True)

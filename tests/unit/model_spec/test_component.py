"""A second component, a linear adapter: its own prefix, parameters and exported function.

It shows what a component needs: this description, and its place in the tuple of components.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.component import (
    ActivationMemory,
    Component,
    Exported,
    ExportOptions,
    model_parameters,
)
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.model_spec.text.scales import embedding_scale
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests.machines import unlinked
from tests.models import E2B_LIKE, random_weights, write_checkpoint

WIDTH = 64
NAME = "model.adapter.proj"
FUNCTION = "adapt"
Float32Array = npt.NDArray[np.float32]


def parameters(config: Gemma4Config) -> tuple[Parameter, ...]:
    shape = (config.hidden_size, WIDTH)
    return (Parameter(NAME, Role.LINEAR, shape, (Source(f"{NAME}.weight", shape),)),)


class Adapter(nn.Module):
    def __init__(self, matrices: Matrices) -> None:
        self.proj = matrices.matrix(NAME)

    def adapt(self, features: nn.Tensor) -> nn.Tensor:
        return self.proj.matmul(features, CHUNK)


def export(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    del config, options
    module = Adapter(matrices)
    mode = {"param_mode": "packed", "effect_mode": "none"}
    functions = {FUNCTION: {"features": nn.spec.Tensor(["n", WIDTH], "float32"), "$": mode}}
    made, _ = module.export_tvm(functions)
    # The modules are named by their attributes; the component's parameters by the checkpoint.
    return Exported(made, (f"{NAME}.weight",))


def memory(config: Gemma4Config, dtype: str) -> ActivationMemory:
    del dtype
    sizes = (4 * WIDTH, 4 * config.hidden_size)
    return ActivationMemory(sizes, (sizes,))


ADAPTER = Component("adapter", ("model.adapter.",), parameters, export, memory)
BOTH = (*COMPONENTS, ADAPTER)
RECIPE, TARGET = RECIPES["f32"], target_spec("cpu")


@pytest.fixture(scope="module")
def weight() -> Float32Array:
    shape = (E2B_LIKE["hidden_size"], WIDTH)
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


@pytest.fixture
def checkpoint(tmp_path: Path, weight: Float32Array) -> Checkpoint:
    path = write_checkpoint(tmp_path / "checkpoint", E2B_LIKE, dtype="float32").path
    text = {
        f"model.language_model.{name}": values
        for name, values in random_weights(E2B_LIKE, dtype="float32").items()
    }
    write_safetensors(path / "model.safetensors", {**text, f"{NAME}.weight": weight}, "float32")
    return Checkpoint.open(path)


def test_its_tensors_are_matched_by_its_prefix(
    checkpoint: Checkpoint, weight: Float32Array
) -> None:
    config = Gemma4Config.from_dict(checkpoint.config)
    found = match(checkpoint.tensors, config, BOTH)
    assert {f"{NAME}.weight", "embed_tokens.weight"} <= found.keys()
    rows = row_reader(found)(f"{NAME}.weight", 2, 5)
    np.testing.assert_array_equal(rows, weight[2:5])
    with pytest.raises(CheckpointError, match=r"`model\.adapter\.proj\.weight` in .* no part"):
        match(checkpoint.tensors, config)


def test_its_missing_tensor_is_named_in_full(tmp_path: Path) -> None:
    opened = Checkpoint.open(write_checkpoint(tmp_path / "c", E2B_LIKE, dtype="float32").path)
    config = Gemma4Config.from_dict(opened.config)
    with pytest.raises(CheckpointError, match=r"tensor `model\.adapter\.proj\.weight` is missing"):
        match(opened.tensors, config, BOTH)


def test_its_function_and_the_decoders_take_one_tuple(
    checkpoint: Checkpoint, weight: Float32Array
) -> None:
    config = Gemma4Config.from_dict(checkpoint.config)
    plan = storage_plan(model_parameters(config, BOTH), RECIPE, TARGET.max_binding_bytes)
    options = decoder_options(RECIPE, TARGET, 16)
    module = build_module(config, RECIPE, TARGET, options, plan, BOTH)
    tensors = [tensor for stored in plan for tensor in stored.tensors]
    assert tensors[-1].name == f"{NAME}.weight"
    types = [module[name].params[-1].ty for name in (FUNCTION, abi.DECODE, abi.PREFILL, abi.EMBED)]
    assert all(len(type_.fields) == len(tensors) for type_ in types)

    for var, func in list(module.functions_items()):  # the others need the library's KV state
        if isinstance(func, relax.Function) and var.name_hint not in (FUNCTION, abi.EMBED):
            del module[var]
    executable = generate(lower(module, TARGET), TARGET)
    vm = unlinked(executable)
    read = row_reader(match(checkpoint.tensors, config, BOTH))
    table = read("embed_tokens.weight", 0, config.vocab_size)
    values = {"embed_tokens.weight": table, f"{NAME}.weight": weight}
    params = [
        tvm.runtime.tensor(values.get(t.name, np.zeros(t.shape, np.float32))) for t in tensors
    ]
    features = np.random.default_rng(5).normal(size=(7, WIDTH)).astype(np.float32)
    adapted = vm[FUNCTION](tvm.runtime.tensor(features), params).numpy()
    np.testing.assert_allclose(adapted, features @ weight.T, rtol=1e-4, atol=1e-4)
    ids = np.array([5, 2], np.int32)
    embedded = vm[abi.EMBED](tvm.runtime.tensor(ids), params).numpy()
    np.testing.assert_allclose(embedded, table[ids] * embedding_scale(config), rtol=1e-6)


def test_a_config_without_it_exports_the_text_alone(checkpoint: Checkpoint) -> None:
    config = Gemma4Config.from_dict(checkpoint.config)
    absent = dataclasses.replace(ADAPTER, parameters=lambda config: ())
    plan = storage_plan(model_parameters(config, COMPONENTS), RECIPE, TARGET.max_binding_bytes)
    options = decoder_options(RECIPE, TARGET, 16)
    both = (*COMPONENTS, absent)
    module = build_module(config, RECIPE, TARGET, options, plan, both)
    alone = build_module(config, RECIPE, TARGET, options, plan)
    tvm.ir.assert_structural_equal(module, alone, map_free_vars=True)

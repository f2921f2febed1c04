"""From a config to a model's functions, and what is told of them; no code is generated here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tvm
from tvm import tirx

from gemma4_compile import abi
from gemma4_compile.compile.build import (
    build_module,
    calls_of,
    decoder_options,
    kernel_descriptions,
)
from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.base import operator_from
from gemma4_compile.passes.fusion_limits import attention_options
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests.models import DENSE_LIKE, config_file

CONFIG = Gemma4Config.from_dict(config_file(DENSE_LIKE, "hub", "float32"))
WEBGPU, CPU = target_spec("webgpu"), target_spec("cpu")
Q4F16 = RECIPES["q4f16"]


def test_the_decoder_s_options_come_from_recipe_and_target() -> None:
    found = decoder_options(Q4F16, WEBGPU, 32, (5,), probe=True, package="name")
    assert (found.activation_dtype, found.prefill_chunk) == ("float16", 32)
    assert found.device_type == DeviceType.WEBGPU
    assert (found.suppressed, found.probe, found.package) == ((5,), True, "name")
    assert found.attention == attention_options(WEBGPU)
    plain = decoder_options(RECIPES["f32"], CPU, 8)
    assert (plain.activation_dtype, plain.suppressed, plain.probe) == ("float32", (), False)


@pytest.fixture(scope="module")
def module() -> tvm.IRModule:
    return build_module(CONFIG, Q4F16, WEBGPU, decoder_options(Q4F16, WEBGPU, 16))


def test_launches_are_listed_in_their_order(module: tvm.IRModule) -> None:
    (lookup,) = calls_of(module, abi.EMBED)
    assert operator_from(kernel_descriptions(module)[lookup]).kind == "embedding"
    names = calls_of(module, abi.DECODE)
    kernels = {var.name_hint for var, _ in module.functions_items()}
    assert set(names) <= kernels
    assert len(names) > len(set(names)), "layers of one kind share their kernels"


def test_fusions_of_the_target_are_in_the_module(module: tvm.IRModule) -> None:
    plain = replace(WEBGPU, max_shared_memory_bytes=0)  # no vector fits, so nothing is fused
    other = build_module(CONFIG, Q4F16, plain, decoder_options(Q4F16, plain, 16))
    assert len(calls_of(module, abi.DECODE)) < len(calls_of(other, abi.DECODE))


def test_calls_in_place_are_launches_as_well(module: tvm.IRModule) -> None:
    assert len(calls_of(module, abi.LOGIT_BIAS)) == 1
    assert calls_of(module, abi.ARGSORT) == []


def test_every_operator_is_described_and_found_again(module: tvm.IRModule) -> None:
    found = kernel_descriptions(module)
    functions = [
        var.name_hint for var, f in module.functions_items() if isinstance(f, tirx.PrimFunc)
    ]
    assert set(found) <= set(functions)
    for text in found.values():
        assert operator_from(text).kind == json.loads(text)["kind"]
    launched = set(calls_of(module, abi.DECODE))
    assert launched <= set(found), "what a token launches can be checked on a device"


def test_row_splits_follow_the_binding_limit() -> None:
    small = replace(WEBGPU, max_binding_bytes=16384)
    module = build_module(CONFIG, Q4F16, small, decoder_options(Q4F16, small, 16))
    sizes = [
        int(field.shape[0]) * int(field.shape[1]) * 4
        for field in module[abi.DECODE].params[-1].ty.fields
        if str(field.dtype) == "uint32"
    ]
    assert max(sizes) <= 16384

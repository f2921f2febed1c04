"""The functions that a client calls: their names, arguments and parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm import relax, tirx

from gemma4_compile import abi
from gemma4_compile.model_spec.component import FEW_ROWS_ATTR, VAR_BOUNDS_ATTR, ExportOptions
from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.model_spec.layers.kv_cache import KvLimits
from gemma4_compile.model_spec.text.export import export_text
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.operators.examples import rows_of_table
from gemma4_compile.operators.sampling import SoftmaxPartials, SoftmaxProbs
from gemma4_compile.quantization.matrix import StoredMatrices
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from tests.models import E2B_LIKE
from tests.unit.model_spec.exported import config_of, kinds, operators

CONFIG = config_of(E2B_LIKE)
PLAN = storage_plan(parameter_table(CONFIG), RECIPES["q4f16"], None)
OPTIONS = ExportOptions("float16", 16, 1, AttentionOptions(2, 4), softmax_blocks=8)
EXPORTED = export_text(CONFIG, StoredMatrices(PLAN), OPTIONS)
MODULE = EXPORTED.module
WITH_PARAMETERS = (abi.EMBED, abi.PREFILL, abi.DECODE)
OTHERS = (
    *(abi.CREATE_KV_CACHE, abi.SOFTMAX, abi.ARGSORT, abi.SAMPLE_TOP_P),
    *(abi.LOGIT_BIAS, abi.PENALTY, abi.BITMASK),
)
TABLE = "embed_tokens_per_layer."
HIDDEN, VOCAB = CONFIG.hidden_size, CONFIG.vocab_size
F32, I32 = "float32", "int32"


def dimension(size: Any) -> int | str:
    return int(size) if isinstance(size, tirx.IntImm) else str(size.name)


def tensors(function: str) -> list[tuple[tuple[int | str, ...], str]]:
    types = [param.ty for param in MODULE[function].params]
    found = [one for one in types if isinstance(one, relax.TensorType)]
    return [(tuple(map(dimension, one.shape)), str(one.dtype)) for one in found]


def test_all_functions_that_the_client_calls_are_there() -> None:
    names = {
        var.name_hint for var, func in MODULE.functions_items() if isinstance(func, relax.Function)
    }
    assert names == {*WITH_PARAMETERS, *OTHERS}


def test_the_decoder_s_functions_take_the_parameters_as_they_are_stored() -> None:
    stored = [tensor for parameter in PLAN for tensor in parameter.tensors]
    assert list(EXPORTED.parameters) == [tensor.name for tensor in stored]
    for name in WITH_PARAMETERS:
        packed = MODULE[name].params[-1].ty
        sizes = [[rows_of_table(size) or int(size) for size in one.shape] for one in packed.fields]
        assert sizes == [list(tensor.shape) for tensor in stored]
        assert [str(one.dtype) for one in packed.fields] == [tensor.dtype for tensor in stored]
        is_open = [isinstance(one.shape[0], tirx.Var) for one in packed.fields]
        assert is_open == [tensor.name.startswith(TABLE) for tensor in stored]
    for name in OTHERS:
        types = [param.ty for param in MODULE[name].params]
        assert not [one for one in types if isinstance(one, relax.TupleType)]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (abi.EMBED, [(("n",), I32)]),
        (abi.PREFILL, [((1, "n", HIDDEN), F32), ((1, "n"), I32), ((1, "n"), I32)]),
        (abi.DECODE, [((1, 1), I32)]),
        (abi.CREATE_KV_CACHE, []),
        (abi.SOFTMAX, [((1, 1, VOCAB), F32), ((1,), F32)]),
        (abi.ARGSORT, [((1, VOCAB), F32)]),
        (
            abi.SAMPLE_TOP_P,
            [*[((1, VOCAB), F32)] * 2, ((1,), F32), ((1,), I32), ((1,), F32)],
        ),
        (abi.LOGIT_BIAS, [((1, VOCAB), F32), (("n",), I32), (("n",), I32), (("n",), F32)]),
        (
            abi.PENALTY,
            [((1, VOCAB), F32), (("m",), I32), *[(("n",), I32)] * 3, (("m", 3), F32)],
        ),
        (abi.BITMASK, [((1, VOCAB), F32), ((1,), I32), ((1, VOCAB // 32), I32)]),
    ],
)
def test_tensors_come_in_the_client_s_order(function: str, arguments: list[Any]) -> None:
    assert tensors(function) == arguments


@pytest.mark.parametrize(("function", "place"), [(abi.PREFILL, 3), (abi.DECODE, 1)])
def test_the_state_stands_before_the_parameters(function: str, place: int) -> None:
    params = MODULE[function].params
    assert len(params) == place + 2
    assert not isinstance(params[place].ty, relax.TensorType | relax.TupleType)


def test_memory_is_planned_for_the_longest_chunk() -> None:
    for name in (abi.EMBED, abi.PREFILL):
        assert int(MODULE[name].attrs[VAR_BOUNDS_ATTR]["n"]) == 16
    for name in (abi.DECODE, *OTHERS):
        assert VAR_BOUNDS_ATTR not in MODULE[name].attrs


def test_embeddings_are_looked_up_and_the_softmax_has_its_blocks() -> None:
    assert kinds(MODULE, abi.EMBED) == ["embedding"]
    partials, probs = operators(MODULE, abi.SOFTMAX)
    assert partials == SoftmaxPartials(VOCAB, 8)
    assert probs == SoftmaxProbs(VOCAB, 8)


def test_a_step_of_several_sequences_is_there_where_rows_find_their_keys() -> None:
    """Where kernels take addresses, but not where a layer's keys are in parts, or padded."""
    joined = replace(OPTIONS, joins_sequences=True)
    in_parts = replace(joined, kv_limits=KvLimits(64, 4096))
    module, other = (
        export_text(CONFIG, StoredMatrices(PLAN), o).module for o in (joined, in_parts)
    )
    assert abi.DECODE_ROWS not in {var.name_hint for var in other.get_global_vars()}
    function = module[abi.DECODE_ROWS]
    assert int(function.attrs[FEW_ROWS_ATTR]) == int(function.attrs[VAR_BOUNDS_ATTR]["n"]) == 9
    ids, *_ = function.params
    assert (str(ids.ty.dtype), ids.ty.ndim) == ("int32", 1)
    text = function.script()
    assert text.count(abi.KV_ROW_SLOTS) == 1
    assert abi.KV_KEY_POOL in text
    assert f'"{abi.KV_KEY}"' not in text


def test_slots_that_are_apart_have_a_launch_of_attention_for_each_row() -> None:
    """Of up to nine rows: what is not there is not launched."""
    options = replace(OPTIONS, joins_sequences=True, slots_apart=True)
    module = export_text(CONFIG, StoredMatrices(PLAN), options).module
    text = module[abi.DECODE_ROWS].script()
    owned = sum(layer.owns_kv for layer in layer_plans(CONFIG))
    assert text.count(abi.KV_KEY_OF_ROW) == text.count(abi.KV_VALUE_OF_ROW) == 9 * owned
    attention = [one for one in kinds(module, abi.DECODE_ROWS) if one == "one_row_decode_attention"]
    assert len(attention) == 9 * CONFIG.num_hidden_layers
    for function in (abi.KV_KEY_POOL, f'"{abi.KV_KEY}"'):
        assert function not in text

"""Which heads a GPU has kernels for: the plan, compiling and the kernels say the same."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import Gemma4CompileError, LoweringError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.operators.activation_quantization import QuantizeRows
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.rows import ONE, Chunk
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.passes.fusion_limits import attention_options
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import TARGETS, TargetSpec, target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.attention.decode_shape import decode_shape
from gemma4_compile.targets.kernels.attention.prefill_shape import chunk_shape
from gemma4_compile.targets.kernels.attention.tensor_core_chunk_shape import (
    tensor_core_chunk_shape,
)
from gemma4_compile.targets.spec import FLOAT, INT8, WORDS
from tests import models
from tests.marks import slow_unless
from tests.numerics.kernel_cases import CHUNK, operators
from tests.packages import Silent

GPUS = [
    target_spec(name, limits)
    for name, target in TARGETS.items()
    for limits, spec in target.limits.items()
    if spec.is_gpu
]
HEAD_DIMS = range(8, 513, 8)
QUANTS = ("q4f16", "q4f32", "f16")


def attention(
    spec: TargetSpec, head_dim: int, heads: int, kv_heads: int, dtype: str, window: int | None
) -> tuple[PrefillAttention, SplitAttention]:
    """The operators of a layer as the model has them."""
    text = {
        **models.DENSE_LIKE,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "sliding_window": window or 8,
    }
    plan = replace(layer_plans(config_of(text))[0], window=window)
    options = attention_options(spec)
    shared: dict[str, Any] = {
        **{"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim},
        **{"window": window, "cache_dtype": dtype, "cache_rows": None},
    }
    return (
        PrefillAttention(rows=Chunk(), out_dtype=dtype, **shared),
        SplitAttention(rows=ONE, splits=options.splits(plan), grain=options.grain(plan), **shared),
    )


def config_of(text: dict[str, Any]) -> Gemma4Config:
    return Gemma4Config.from_dict(models.config_file(text, "hub", "float32"))


@pytest.mark.parametrize("spec", GPUS, ids=lambda spec: f"{spec.name}-{spec.limits}")
def test_blocks_hold_heads_of_every_multiple_of_eight(spec: TargetSpec) -> None:
    ratios = [(1, 1), (2, 1), (6, 2), (4, 1), (5, 1), (24, 4), (7, 1), (8, 1)]
    for head_dim, dtype in product(HEAD_DIMS, ("float16", "float32")):
        heads, kv_heads = ratios[head_dim // 8 % len(ratios)]
        for window in (None, 512):
            chunk, split = attention(spec, head_dim, heads, kv_heads, dtype, window)
            tile, block = chunk_shape(chunk, spec), decode_shape(split, spec)
            assert tile.columns == block.columns == head_dim // 4
            assert block.chunks * block.lanes - block.padding == block.columns
            assert block.padding < block.lanes


def test_warps_share_rounded_heads() -> None:
    spec, rounded = target_spec("cuda"), {}
    options = attention_options(spec)
    for head_dim, heads in product(HEAD_DIMS, (1, 8, 32)):
        if options.rounds(head_dim, "float16"):
            one = PrefillAttention(Chunk(), heads, 1, head_dim, None, "float16", None)
            operator = replace(one, rounds_to_halves=True)
            shape = tensor_core_chunk_shape(operator, spec)
            assert shape.fits(spec)
            assert shape.parts * shape.channels == shape.head_dim == head_dim
            rounded[head_dim, heads] = (shape.rows, shape.channels, shape.keys)
    assert {dim for dim, _ in rounded} == set(range(64, 513, 64))
    released = {key: value for key, value in rounded.items() if key[0] in (256, 512)}
    assert released == {
        **{(256, 1): (32, 128, 32), (256, 8): (32, 128, 32), (256, 32): (64, 128, 32)},
        **{(512, 1): (32, 128, 16), (512, 8): (32, 128, 16), (512, 32): (64, 256, 16)},
    }


def test_only_float16_keys_on_matrix_units_have_rounded_operands() -> None:
    units = [target_spec("cuda"), target_spec("webgpu", "h200-matrices")]
    assert all(attention_options(spec).rounds(256, "float16") for spec in units)
    assert not any(attention_options(spec).rounds(256, "float32") for spec in units)
    assert not attention_options(replace(units[1], float16=WORDS)).rounds(256, "float16")
    others = [spec for spec in GPUS if spec not in units]
    assert others
    assert not any(attention_options(spec).rounds(256, "float16") for spec in others)


OTHER_HEAD_DIMS = (10, 520, 36, 1024, 510, 12, 260, 516, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "spec"),
    # Each target with two, each size with two targets or more.
    [
        pytest.param(
            OTHER_HEAD_DIMS[at % 9], spec, id=f"{OTHER_HEAD_DIMS[at % 9]}-{spec.name}-{spec.limits}"
        )
        for number, spec in enumerate(GPUS)
        for at in (2 * number, 2 * number + 1)
    ],
)
def test_other_heads_are_refused_everywhere(
    head_dim: int, spec: TargetSpec, tmp_path: Path
) -> None:
    """The plan, compiling and both kinds of kernels; on full layers as on sliding ones."""
    what = (
        f"head_dim {head_dim}: target `{spec.name}` has attention kernels for multiples of 8 "
        "up to 512"
    )
    kernels = attention(spec, head_dim, 4, 1, "float32", None)
    assert_refused(what, partial(chunk_shape, kernels[0], spec))
    assert_refused(what, partial(decode_shape, kernels[1], spec))
    for key in ("head_dim", "global_head_dim"):
        text = {**models.E4B_LIKE, key: head_dim}
        plan = make_plan(config_of(text), "q4f16", spec, 64, 64)
        assert_refused(what, plan.check)
        model = tmp_path / key
        model.mkdir()
        (model / "config.json").write_text(json.dumps(models.config_file(text, "hub", "float32")))
        request = CompileRequest(
            *(str(model), spec.name, "q4f16", tmp_path / "out"), spec.limits, only="library"
        )
        assert_refused(what, partial(compile_model, request, Silent()))
        make_plan(config_of(text), "f16", target_spec("cpu"), 64, 64).check()


def assert_refused(what: str, action: Any) -> None:
    with pytest.raises(LoweringError) as caught:
        action()
    assert str(caught.value) == what
    assert caught.value.hint == "--target cpu takes every even head_dim"


def random_text(rng: random.Random) -> dict[str, Any]:
    """Sizes of a model that no released one has; some of them cannot be built."""
    kv_heads = rng.choice([1, 1, 2, 3, 4])
    heads = kv_heads * rng.randrange(1, 9)
    divisors = [count for count in range(1, heads + 1) if heads % count == 0]
    step = rng.choice([8, 8, 8, 8, 8, 2])
    return {
        **rng.choice(list(models.KINDS.values())),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": rng.choice([None, rng.choice(divisors)]),
        "head_dim": step * rng.randrange(1, 65),
        "global_head_dim": 8 * rng.randrange(1, 65),
        "hidden_size": 32 * rng.randrange(1, 40),
        "intermediate_size": 32 * rng.randrange(1, 80),
        "attention_k_eq_v": rng.random() < 0.5,
        "sliding_window": rng.choice([1, 7, 512]),
    }


def problem(action: Any) -> Gemma4CompileError | None:
    try:
        action()
    except Gemma4CompileError as error:
        return error
    return None


@pytest.mark.parametrize("seed", slow_unless(lambda seed: seed < 8, range(20)))
def test_what_the_plan_takes_has_all_its_kernels(seed: int) -> None:
    rng = random.Random(seed)
    config, quant, spec = config_of(random_text(rng)), rng.choice(QUANTS), rng.choice(GPUS)
    stores_integers = isinstance(RECIPES[quant].schemes[Role.LINEAR], GroupScheme)
    forms = spec.activation_forms if stores_integers else (FLOAT,)
    spec = replace(spec, activations=rng.choice(forms))

    def kernels() -> None:
        largest = spec.max_binding_bytes or 1 << 40
        for operator in operators(config, quant, spec, largest):
            make_kernel(operator, spec)

    planned = problem(make_plan(config, quant, spec, CHUNK, CHUNK).check)
    built = problem(kernels)
    assert (planned is None) == (built is None), (planned, built)


@pytest.mark.parametrize("limits", ["default", "h200"])
def test_groups_of_channels_that_lie_in_two_heads_are_packed_after_the_merge(limits: str) -> None:
    """32 channels of heads of 48 are a group; those of 64 are merged and packed in one launch."""
    spec = replace(target_spec("webgpu", limits), activations=INT8)
    wide = {"hidden_size": 9216, "num_attention_heads": 192}  # rows too long to merge for
    text = {**models.E2B_LIKE, "head_dim": 64, "global_head_dim": 48, **wide}
    found = operators(config_of(text), "q4f16", spec, 1 << 27)
    assert all(make_kernel(operator, spec) for operator in found)
    merges = [op for op in found if isinstance(op, CombineSplits)]
    assert {(op.head_dim, op.packs) for op in merges} == {(64, True), (48, False)}
    assert {op.width for op in found if isinstance(op, QuantizeRows) and op.rows == ONE} == {
        192 * 48
    }

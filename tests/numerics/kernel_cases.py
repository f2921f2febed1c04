"""Every operator of a model with random inputs, to hold a target's kernels against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add, floordiv, mul
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.tirx.buffer import is_buffer_var

from gemma4_compile.model_spec.config import Gemma4Config
from gemma4_compile.model_spec.export import export_module
from gemma4_compile.model_spec.operators.base import Operator, operator_of
from gemma4_compile.model_spec.operators.sampling import SampleTopP
from gemma4_compile.model_spec.parameters import parameter_table
from gemma4_compile.model_spec.sampler import SamplerOptions
from gemma4_compile.passes.library import SOFTMAX_BLOCKS, decoder_options, kernel_limits
from gemma4_compile.quantization.modules import StoredMatrices
from gemma4_compile.quantization.recipe import RECIPES, storage_plan
from gemma4_compile.targets import TargetSpec
from tests.numerics.plain_forms import run

Array = npt.NDArray[Any]

CHUNK = 512
ROWS = 19  # of a prefill chunk: no multiple of any tile
BEFORE = 1200  # positions before it: every ring has wrapped
CAPACITY = 1300
UPDATED_TOKENS = 9
ARITHMETIC = {tirx.Add: add, tirx.Mul: mul, tirx.FloorDiv: floordiv}  # of tensor dimensions
SIZES = {"n": ROWS, "m": 1, "capacity": CAPACITY, "chunk": CHUNK}


@dataclass(frozen=True)
class KernelCase:
    """An operator, its arguments, and what its plain form makes of them."""

    operator: Operator
    args: tuple[Array | int, ...]
    changed: tuple[int, ...]
    expected: tuple[Array, ...]

    @property
    def label(self) -> str:
        rows = getattr(self.operator, "rows", 1)
        return f"{self.operator.name}-{'chunk' if rows is None else 'one'}"


def operators(
    config: Gemma4Config, quant: str, spec: TargetSpec, part_bytes: int
) -> tuple[Operator, ...]:
    """The distinct operators of a library; matrices in parts of at most `part_bytes`."""
    recipe = RECIPES[quant]
    plan = storage_plan(parameter_table(config), recipe, part_bytes)
    module, _ = export_module(
        config,
        StoredMatrices(plan, kernel_limits(spec)),
        decoder_options(recipe, spec, CHUNK),
        SamplerOptions(softmax_blocks=SOFTMAX_BLOCKS, lanes=spec.max_threads_per_block),
    )
    found: dict[Operator, None] = {}
    for _, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            operator = operator_of(func)
            if operator is not None:
                found[operator] = None
    return tuple(found)


def make_case(operator: Operator, seed: int, before: int = BEFORE) -> KernelCase:
    """Fill the arguments, run the plain form, and note what it changed.

    `before` is the number of positions that stand before the operator's rows.
    """
    args = _arguments(operator, np.random.default_rng(seed))
    for param, arg in zip(operator.prim_func().params, args, strict=True):
        if is_buffer_var(param) and param.name == "positions":
            arg[[0, 2]] += before - BEFORE
    after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in args)
    run(operator, *after)
    changed = tuple(
        index
        for index, (old, new) in enumerate(zip(args, after, strict=True))
        if not isinstance(old, int) and not np.array_equal(old, new)
    )
    return KernelCase(operator, args, changed, tuple(after[index] for index in changed))


def _size(dimension: Any) -> int:
    """A dimension with the symbolic sizes in it replaced."""
    if isinstance(dimension, tirx.Var):
        return SIZES[dimension.name]
    for kind, combine in ARITHMETIC.items():
        if isinstance(dimension, kind):
            return int(combine(_size(dimension.a), _size(dimension.b)))
    return int(dimension)


def _arguments(operator: Operator, rng: np.random.Generator) -> tuple[Array | int, ...]:
    func = operator.prim_func()
    args: list[Array | int] = []
    for param in func.params:
        if not is_buffer_var(param):
            args.append(3)  # the layer whose per-layer inputs are read
            continue
        shape = tuple(_size(dimension) for dimension in param.shape)
        args.append(_values(operator, param.name, shape, str(param.dtype), rng))
    if isinstance(operator, SampleTopP):
        run(operator.survey, *args[:3])
    return tuple(args)


def _values(
    operator: Operator, name: str, shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> Array:
    special = _special(operator, name, shape, rng)
    if special is not None:
        return special.astype(dtype)
    if dtype == "uint32":
        words = rng.integers(0, 2**32, shape, dtype=np.uint32)
        if name.startswith("q_weight") and vars(operator)["bits"] == 8:
            words = np.minimum(words.view(np.uint8), 254).view(np.uint32)  # 255 is never stored
        return words
    if name.startswith("q_scale"):
        return rng.uniform(0.001, 0.01, shape).astype(dtype)
    if name.startswith("weight"):
        return rng.normal(0, 0.05, shape).astype(dtype)
    return rng.normal(0, 1, shape).astype(dtype)


def _of_experts(fields: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Array:
    """Chosen experts, or rows grouped by expert; equal for `order` and `tiles` of one operator."""
    experts, top_k = fields["experts"], fields["top_k"]
    rng = np.random.default_rng(experts)
    if name == "ids":
        return np.stack([rng.permutation(experts)[:top_k] for _ in range(shape[0])])
    if name == "order":
        return rng.permutation(shape[0])
    gate_up = fields.get("tail", "gelu_pairs") == "gelu_pairs"
    pairs, tile = ROWS * top_k if gate_up else ROWS, fields["tile"]
    runs = np.bincount(rng.integers(0, experts, pairs), minlength=experts)
    tiles, begin = np.zeros(shape, np.int32), 0
    used = 0
    for expert, count in enumerate(runs):
        end = begin + int(count)
        for first in range(begin, end, tile):
            tiles[used] = expert, first, min(first + tile, end)
            used += 1
        begin = end
    return tiles


def _special(
    operator: Operator, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> Array | None:
    fields: Mapping[str, Any] = vars(operator)
    vocab = fields.get("vocab", 1)
    rows = fields.get("rows") or ROWS
    if name == "positions":
        return np.array([BEFORE, rows, BEFORE + rows, 0])
    if name == "rotary":
        angles = rng.uniform(-3, 3, shape[:-1])
        return np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    if name in ("ids", "order", "tiles") and "top_k" in fields:
        return _of_experts(fields, name, shape)
    if name == "ids":
        table = fields["row_begin"] + sum(fields["part_rows"])
        return rng.integers(0, table + 64, shape)  # some lie outside of these parts
    if name == "probs":
        weights = np.exp(rng.normal(0, 3, shape))
        return weights / weights.sum()
    if name == "logits":
        return rng.normal(0, 6, shape)
    if name in ("seq", "seq_ids", "pos2seq"):
        return np.zeros(shape)
    if name == "token":
        return rng.permutation(vocab)[: int(np.prod(shape))].reshape(shape)
    if name == "count":
        return rng.integers(1, 5, shape)
    if name == "penalties":
        return np.array([[0.5, 0.25, 1.25]])
    if name in ("mask", "bitmask"):
        return rng.integers(-(2**31), 2**31, shape)
    if name in ("temperature", "uniform", "top_p"):
        return np.array([{"temperature": 0.8, "uniform": 0.37, "top_p": 0.95}[name]])
    if name in ("partials", "stats"):  # (maximum, sum of weights)
        return np.stack([rng.uniform(30, 31, shape[:-1]), rng.uniform(1, 2, shape[:-1])], axis=-1)
    return None

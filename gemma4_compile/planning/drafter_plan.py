"""The drafter's part of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import DataType

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.config.drafter import MAX_VERIFIED
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.component import DRAFTER
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.operators.sampling import TopPHistogram
from gemma4_compile.passes.fusion_limits import few_row_options
from gemma4_compile.quantization.recipe import Recipe, storage_plan
from gemma4_compile.quantization.scheme import DTYPE_BYTES
from gemma4_compile.targets.spec import TargetSpec


@dataclass(frozen=True)
class DrafterPlan:
    """The drafter of a package; a client that does without it loads none of it.

    Attributes
    ----------
    weights_bytes : in the chosen recipe; 0 where that cannot store it, for the reason `problem`
    activation_bytes : of a draft, and of all tokens that are held against drafts: their logits and
        the draws from them, and on a GPU the splits of their attention
    """

    parameters: int
    weights_bytes: int
    activation_bytes: int
    problem: str | None = None


def plan_drafter(
    config: Gemma4Config, recipe: Recipe, target: TargetSpec, limit: int | None
) -> DrafterPlan:
    """Plan the drafter of a config that has one; `limit` of a binding splits its tensors."""
    table = DRAFTER.parameters(config)
    memory = DRAFTER.activations(config, recipe.activation_dtype)
    verified = MAX_VERIFIED * (DTYPE_BYTES["float32"] * config.vocab_size + _draw_bytes(config))
    weights, problem = 0, None
    try:
        stored = storage_plan(table, recipe, limit)
        weights = sum(tensor.nbytes for one in stored for tensor in one.tensors)
    except QuantizationError as error:
        problem = str(error)
    return DrafterPlan(
        parameters=sum(prod(parameter.shape) for parameter in table),
        weights_bytes=weights,
        activation_bytes=max(map(sum, memory.together))
        + verified
        + _splits_bytes(config, recipe, target),
        problem=problem,
    )


def _draw_bytes(config: Gemma4Config) -> int:
    """Memory of a draw from one row: the probabilities, and their histogram."""
    specs = TopPHistogram(config.vocab_size).results_of(1)
    return DTYPE_BYTES["float32"] * config.vocab_size + sum(
        prod(map(int, shape)) * DataType(dtype).itemsize for shape, dtype in specs
    )


def _splits_bytes(config: Gemma4Config, recipe: Recipe, target: TargetSpec) -> int:
    """Memory of the attention of all tokens that are held against drafts."""
    if not target.is_gpu:
        return 0
    options, item = few_row_options(target), DTYPE_BYTES[recipe.activation_dtype]
    of_a_head = 2 * DTYPE_BYTES["float32"]  # maximum and sum of a split
    sizes = []
    for plan in layer_plans(config):
        of_keys = plan.window, plan.num_key_value_heads, plan.head_dim
        splits = options.splits_of_rows(*of_keys, MAX_VERIFIED)
        sizes.append(splits * plan.num_attention_heads * (plan.head_dim * item + of_a_head))
    return MAX_VERIFIED * max(sizes)

"""What the weights of a model take in a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.planning.parameter_kinds import read_per_token
from gemma4_compile.planning.weight_parts import bytes_by_part
from gemma4_compile.quantization.recipe import Recipe, StoredParameter, storage_plan


@dataclass(frozen=True)
class RecipePlan:
    """Weights in a recipe; `problem` is why it cannot store them, and the rest is 0 then.

    Attributes
    ----------
    parts : bytes by part, keys of `weight_parts.PARTS`
    """

    name: str
    problem: str | None = None
    weights_bytes: int = 0
    bytes_per_token: int = 0
    largest_tensor_bytes: int = 0
    largest_binding_bytes: int = 0
    split_parameters: int = 0
    most_parts: int = 0
    parts: tuple[tuple[str, int], ...] = ()


def _recipe_plan(
    config: Gemma4Config, recipe: Recipe, stored: Sequence[StoredParameter], whole: int
) -> RecipePlan:
    sizes = [(entry.parameter, sum(t.nbytes for t in entry.tensors)) for entry in stored]
    return RecipePlan(
        name=recipe.name,
        weights_bytes=sum(size for _, size in sizes),
        bytes_per_token=read_per_token(config, sizes),
        largest_tensor_bytes=whole,
        largest_binding_bytes=max(t.nbytes for entry in stored for t in entry.tensors),
        split_parameters=sum(len(entry.row_splits) > 1 for entry in stored),
        most_parts=max(len(entry.row_splits) for entry in stored),
        parts=bytes_by_part(sizes),
    )


def plan_recipe(
    config: Gemma4Config, table: Sequence[Parameter], recipe: Recipe, limit: int | None
) -> RecipePlan:
    """Plan the parameters of a table in a recipe, in tensors of at most `limit` bytes."""
    try:
        unsplit = storage_plan(table, recipe, None)
        stored = storage_plan(table, recipe, limit)
    except QuantizationError as error:
        return RecipePlan(recipe.name, problem=str(error))
    whole = max(tensor.nbytes for entry in unsplit for tensor in entry.tensors)
    return _recipe_plan(config, recipe, stored, whole)

"""`gemma4-verify MODEL --compare-recipes LIST`: what recipes cost a checkpoint, and save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.options.package import TRAINED_QUANT
from gemma4_compile.planning.parameter_kinds import read_per_token
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.recipe import Recipe, StoredParameter, storage_plan
from gemma4_compile.quantization.recipe_file import (
    check_overrides,
    read_recipe_file,
    with_overrides,
)
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.measures import TextMeasures
from gemma4_compile.verification.recipe_runs import Subject, open_runs

if TYPE_CHECKING:  # it needs torch and transformers
    from gemma4_compile.verification.form_measures import FormMeasures

SCHEMA, SCHEMA_VERSION = "gemma4_compile.frontier", 1
MAX_RECIPES = 32


@dataclass(frozen=True, kw_only=True)
class FrontierRequest(Subject):
    """A checkpoint and the recipes to try on it, as `parse_recipes` takes them."""

    recipes: tuple[str, ...]


@dataclass(frozen=True)
class RecipeCost:
    """A recipe: what it stores, and how far the model is from itself in float32.

    Attributes
    ----------
    overrides : patterns and schemes of its recipe file
    schemes : weights by scheme
    weights : all of them
    weights_bytes, bytes_per_token : stored, and read for a decoded token
    bits_per_weight : stored
    texts : measures by text; `all_texts` of all their positions together
    """

    name: str
    overrides: tuple[tuple[str, str], ...]
    schemes: Mapping[str, int]
    weights: int
    weights_bytes: int
    bytes_per_token: int
    bits_per_weight: float
    texts: Mapping[str, TextMeasures]
    all_texts: TextMeasures

    @classmethod
    def of(
        cls,
        name: str,
        recipe: Recipe,
        plan: Sequence[StoredParameter],
        config: Gemma4Config,
        found: FormMeasures,
    ) -> RecipeCost:
        """A recipe whose plan, of parameters that are not split, is `plan`."""
        sizes = [(one.parameter, sum(tensor.nbytes for tensor in one.tensors)) for one in plan]
        schemes: Counter[str] = Counter()
        for one in plan:
            schemes[one.scheme.name] += prod(one.parameter.shape)
        stored, weights = sum(size for _, size in sizes), schemes.total()
        return cls(
            name=name,
            overrides=tuple((pattern, scheme.name) for pattern, scheme in recipe.overrides),
            schemes=dict(schemes),
            weights=weights,
            weights_bytes=stored,
            bytes_per_token=read_per_token(config, sizes),
            bits_per_weight=8 * stored / weights,
            texts=found.texts,
            all_texts=found.all,
        )


@dataclass(frozen=True)
class Frontier:
    """Findings on a checkpoint; `subject` is what was run, of what and with what."""

    subject: JsonObject
    recipes: tuple[RecipeCost, ...]

    def to_json(self) -> JsonObject:
        """Content of the report: no times, no paths."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            **self.subject,
            "recipes": [asdict(one) for one in self.recipes],
        }


def parse_recipe(text: str) -> tuple[str, Recipe]:
    """A recipe by its name, a recipe file on `q4f16`, or NAME+FILE; and what it is called.

    Raises
    ------
    UsageError
        If there is no such recipe, or the file cannot be read.
    """
    name, _, file = text.partition("+")
    if name not in RECIPES and name.endswith(".json"):
        name, file = TRAINED_QUANT, text
    if name not in RECIPES:
        raise UsageError(
            f"--compare-recipes: unknown recipe `{name}`",
            hint=f"known: {', '.join(RECIPES)}; of a recipe file, q4f16+FILE or FILE.json",
        )
    if not file:
        return name, with_overrides(name, ())
    return f"{name}+{Path(file).name}", with_overrides(name, read_recipe_file(Path(file)))


def parse_recipes(texts: Sequence[str]) -> dict[str, Recipe]:
    """Recipes by what they are called; errors as those of `parse_recipe`."""
    found: dict[str, Recipe] = {}
    for name, recipe in map(parse_recipe, texts):
        if name in found:
            raise UsageError(
                f"--compare-recipes: two recipes have the same name, `{name}`",
                hint="name each of them once; files of one name in two folders need two names",
            )
        found[name] = recipe
    if len(found) > MAX_RECIPES:
        raise UsageError(
            f"--compare-recipes: {len(found)} recipes; expected at most {MAX_RECIPES}",
            hint="each takes the memory of one more model's states: run the command twice",
        )
    return found


def compare_recipes(request: FrontierRequest, reporter: Reporter) -> Frontier:
    """Try recipes on a checkpoint.

    Raises
    ------
    Gemma4CompileError
        If something is missing, damaged or does not fit.
    """
    recipes = parse_recipes(request.recipes)
    plans: dict[str, tuple[StoredParameter, ...]] = {}

    def plan(config: Gemma4Config, table: Sequence[Parameter]) -> None:
        for name, recipe in recipes.items():  # what cannot be stored is said before gigabytes
            check_overrides(recipe, table)
            plans[name] = storage_plan(table, recipe, None)

    with open_runs(request, reporter, plan) as runs:
        measures = runs.measure(list(recipes.values()), reporter)
        rows = zip(recipes.items(), plans.values(), measures, strict=True)
        return Frontier(
            runs.subject,
            tuple(
                RecipeCost.of(name, recipe, plan, runs.config, found)
                for (name, recipe), plan, found in rows
            ),
        )

"""`gemma4-verify MODEL --compare-recipes LIST`: what recipes cost a checkpoint, and save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from gemma4_compile.checkpoint.sources import ModelSource
from gemma4_compile.compile.usual_recipe import usual_quant
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.options.package import MOBILE
from gemma4_compile.planning.parameter_kinds import read_per_token
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.recipe import Recipe, StoredParameter, storage_plan
from gemma4_compile.quantization.recipe_file import (
    Overrides,
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


@dataclass(frozen=True)
class Choice:
    """A recipe of a list.

    Attributes
    ----------
    quant : None for the checkpoint's default, as gemma4-compile takes a recipe file
    file : name of the recipe file whose schemes are `overrides`; empty for none
    """

    quant: str | None
    file: str = ""
    overrides: Overrides = ()

    def on(self, usual: str) -> tuple[str, Recipe]:
        """What it is called, and the recipe, of a checkpoint with this default."""
        quant = self.quant or usual
        name = f"{quant}+{self.file}" if self.file else quant
        return name, with_overrides(quant, self.overrides)


def parse_recipe(text: str) -> Choice:
    """A recipe by its name, NAME+FILE, or a recipe file alone.

    Raises
    ------
    UsageError
        If there is no such recipe, or the file cannot be read.
    """
    name, _, file = text.partition("+")
    if name not in RECIPES and name.endswith(".json"):
        return Choice(None, Path(text).name, read_recipe_file(Path(text)))
    if name not in RECIPES:
        raise UsageError(
            f"--compare-recipes: unknown recipe `{name}`",
            hint=f"known: {', '.join(RECIPES)}; of a recipe file, q4f16+FILE or FILE.json",
        )
    return Choice(name, Path(file).name, read_recipe_file(Path(file))) if file else Choice(name)


def parse_recipes(texts: Sequence[str]) -> tuple[Choice, ...]:
    """The recipes of a list; errors as those of `parse_recipe`."""
    if len(texts) > MAX_RECIPES:
        raise UsageError(
            f"--compare-recipes: {len(texts)} recipes; expected at most {MAX_RECIPES}",
            hint="each takes the memory of one more model's states: run the command twice",
        )
    choices = tuple(map(parse_recipe, texts))
    named_recipes([one for one in choices if one.quant], "")  # before anything is opened
    return choices


def named_recipes(choices: Sequence[Choice], usual: str) -> dict[str, Recipe]:
    """Recipes by what they are called; UsageError for two of one name."""
    found: dict[str, Recipe] = {}
    for name, recipe in (one.on(usual) for one in choices):
        if name in found:
            raise UsageError(
                f"--compare-recipes: two recipes have the same name, `{name}`",
                hint="name each of them once; files of one name in two folders need two names",
            )
        found[name] = recipe
    return found


def _usual(source: ModelSource, table: Sequence[Parameter]) -> str:
    """The default of a checkpoint, which a recipe file alone is put on."""
    if source.config.rounds_activations:
        raise UsageError(
            "--compare-recipes: a recipe file alone is put on the checkpoint's default, which of "
            f"one for phones is its own form, `{MOBILE}`, that is not compared",
            hint="name a recipe before it: q8f16+FILE",
        )
    return usual_quant(source, table)


def compare_recipes(request: FrontierRequest, reporter: Reporter) -> Frontier:
    """Try recipes on a checkpoint.

    Raises
    ------
    Gemma4CompileError
        If something is missing, damaged or does not fit.
    """
    choices = parse_recipes(request.recipes)
    recipes: dict[str, Recipe] = {}
    plans: dict[str, tuple[StoredParameter, ...]] = {}

    def plan(source: ModelSource, table: Sequence[Parameter]) -> None:
        usual = "" if all(one.quant for one in choices) else _usual(source, table)
        recipes.update(named_recipes(choices, usual))
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

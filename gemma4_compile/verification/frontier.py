"""`gemma4-verify MODEL --compare-recipes LIST`: what recipes cost a checkpoint, and what they save.

No package is made: transformers runs in float32 on the weights that each recipe would store, next
to the checkpoint's own, all together, so that a layer is read once. It is the recipes alone that
differ: kernels and the dtype of activations take no part.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemma4_compile import __version__
from gemma4_compile.checkpoint.gguf.opening import Tokenizer
from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.same_weights import sample_hash
from gemma4_compile.checkpoint.sources import ModelSource, open_source
from gemma4_compile.checkpoint.suppressed_tokens import suppressed_tokens
from gemma4_compile.compilation import config_digest
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.model_spec.text.config import Gemma4Config
from gemma4_compile.options import DEFAULT_QUANT
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.quantization.recipe import Recipe, StoredParameter, storage_plan
from gemma4_compile.quantization.recipe_file import (
    check_overrides,
    read_recipe_file,
    with_overrides,
)
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.reports.parameter_kinds import read_per_token
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.measures import TextMeasures
from gemma4_compile.verification.prompt import read_text
from gemma4_compile.verification.recipe_weights import EXACT, RecipeWeights
from gemma4_compile.verification.texts import GIVEN, FormText, open_reader
from gemma4_compile.verification.torch_parts import choose_device, load_forms, load_transformers
from gemma4_compile.verify_options import AUTO, DEFAULT_TEXT_TOKENS, TEXTS

if TYPE_CHECKING:  # they need torch and transformers
    from gemma4_compile.verification.form_measures import FormMeasures
    from gemma4_compile.verification.heads import Weights

SCHEMA, SCHEMA_VERSION = "gemma4_compile.frontier", 1
MAX_RECIPES = 32


@dataclass(frozen=True)
class FrontierRequest:
    """A checkpoint and the recipes to try on it.

    Attributes
    ----------
    recipes : as `parse_recipes` takes them
    texts : names of the texts that ship
    text : a text of the user's besides
    text_tokens : most tokens of a text
    device : of torch, or `auto`
    tokenizer : hub id or directory of the tokenizer, of a model in GGUF
    adapters : hub ids or directories of what is merged into the model first, in order
    """

    model: str
    recipes: tuple[str, ...]
    revision: str | None = None
    texts: tuple[str, ...] = TEXTS
    text: Path | None = None
    text_tokens: int = DEFAULT_TEXT_TOKENS
    device: str = AUTO
    tokenizer: str | None = None
    adapters: tuple[str, ...] = ()


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
    """A recipe by its name, a recipe file on the default one, or NAME+FILE; and what it is called.

    Raises
    ------
    UsageError
        If there is no such recipe, or the file cannot be read.
    """
    name, _, file = text.partition("+")
    if name not in RECIPES and name.endswith(".json"):
        name, file = DEFAULT_QUANT, text
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
    found = dict(map(parse_recipe, texts))
    if len(found) != len(texts):
        raise UsageError(
            "--compare-recipes: two recipes have the same name", hint="name each of them once"
        )
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
    transformer = load_transformers()
    device = choose_device(request.device)
    reporter.stage(f"opening {request.model}")
    tokenizer = Tokenizer(is_wanted=True, given=request.tokenizer)
    with open_source(
        *(request.model, request.revision),
        weights=True,
        tokenizer=tokenizer,
        adapters=request.adapters,
    ) as source:
        assert source.checkpoint is not None, "asked for"
        table = model_parameters(source.config, COMPONENTS)
        plans = {}
        for name, recipe in recipes.items():  # what cannot be stored is said before gigabytes
            check_overrides(recipe, table)
            plans[name] = storage_plan(table, recipe, None)
        texts = _texts(request, source.checkpoint, source.config)
        matched = match(source.checkpoint.tensors, source.config)
        read = row_reader(matched)
        weights = [
            transformer.Weights(read, _shapes(table), lambda name: EXACT),
            *(_stored(transformer.Weights, read, table, one) for one in recipes.values()),
        ]
        measures = _measure(weights, texts, source, device, reporter)
        sample = sample_hash({leaf for one in matched.values() for leaf in one.stored})
        subject = {
            "source": {
                **source.origin, "config": config_digest(source.config), "weights": sample
            },
            "versions": {
                "gemma4-compile": __version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                **transformer.VERSIONS,
            },
            "device": device,
            "texts": {text.name: text.to_json() for text in texts},
            "left_out": [name for name in request.texts if name not in measures[0].texts],
        }  # fmt: skip
    rows = zip(recipes.items(), plans.values(), measures, strict=True)
    return Frontier(
        subject,
        tuple(
            RecipeCost.of(name, recipe, plan, source.config, found)
            for (name, recipe), plan, found in rows
        ),
    )


def _texts(
    request: FrontierRequest, checkpoint: Checkpoint, config: Gemma4Config
) -> list[FormText]:
    """The texts as tokens; UsageError if none of them has two."""
    checkpoint.tokenizer_files()  # names the one that is missing
    room = min(request.text_tokens, config.max_position_embeddings)
    reader = open_reader(checkpoint.path, config, room)
    texts = list(reader.read(request.texts))
    if request.text is not None:
        given = reader.text(GIVEN, read_text(request.text))
        texts += [] if given is None else [given]
    if not texts:
        raise UsageError(
            "none of the texts can be read with the model's tokenizer and chat template",
            hint="give other --texts, or a --text of your own",
        )
    return texts


def _shapes(table: Sequence[Parameter]) -> dict[str, tuple[int, ...]]:
    return {source.name: source.shape for item in table for source in item.sources}


def _stored(
    kind: type[Weights], read: RowReader, table: Sequence[Parameter], recipe: Recipe
) -> Weights:
    """The weights that a recipe stores."""
    stored = RecipeWeights(read, table, recipe)
    return kind(stored.read, _shapes(table), stored.version)


def _measure(
    weights: Sequence[Weights],
    texts: Sequence[FormText],
    source: ModelSource,
    device: str,
    reporter: Reporter,
) -> list[FormMeasures]:
    """Measures of every set but the first."""
    transformer, forms = load_transformers(), load_forms()
    assert source.checkpoint is not None, "asked for"
    text = transformer.text_config(source.checkpoint.config)
    excluded = suppressed_tokens(source.generation_config, source.config.vocab_size)
    lengths = [len(one.ids) for one in texts]
    states = forms.state_bytes(text, len(weights), lengths)
    reporter.stage(
        f"running transformers in float32 on {sum(lengths)} tokens in {len(weights)} forms, on "
        f"{device}; their states take {states / 2**20:.0f} MiB"
    )
    total = len(weights) * forms.layer_bytes(weights[0].shapes)
    with reporter.progress("running layers", total) as advance:
        advance(0)  # nothing was done by an earlier run
        runs = transformer.stream(
            text,
            source.config.dtype,
            weights,
            [transformer.Tokens(one.ids) for one in texts],
            device=device,
            advance=advance,
        )
    reporter.stage("comparing the distributions")
    found: list[FormMeasures] = forms.compare_forms(text, weights, runs, texts, excluded, device)
    return found

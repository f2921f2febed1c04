"""The recipe of a request that names none: by the checkpoint's weights, or by the model's name.

Weights are read as far as they are here: of a directory, a file, and whatever is compiled. Where
only the config is, as with `--plan` of a hub id and `--only library`, the name has to do, and
adapters count as what takes weights off their levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gemma4_compile.checkpoint.four_bits import share_on_levels
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.sources import TINY, ModelSource, open_source
from gemma4_compile.checkpoint.trained import is_named_trained
from gemma4_compile.compile.request import CompileRequest, UsualRecipe, with_quant
from gemma4_compile.compile.resolve import package_there
from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.options.package import DEFAULT_QUANT, MOBILE, TRAINED_QUANT
from gemma4_compile.options.process import without_warnings
from gemma4_compile.quantization.schemes import RECIPES

MOST, _NEARLY_ALL = 0.6, 0.99
"""Shares of groups: from where on minima would lose more than a scale, and of trained weights."""


def with_usual_recipe(
    request: CompileRequest, source: ModelSource, known_as: str | None = None
) -> CompileRequest:
    """The request itself where its recipe is given or decided, else one with the usual recipe.

    Parameters
    ----------
    known_as : the model that is meant, where the request names what has its config alone

    Raises
    ------
    CheckpointError
        If tensors of a source that is opened with them are not those of its config.
    """
    if request.usual is None or request.usual.is_decided:
        return request
    quant, usual = _usual(request, source, known_as or request.model)
    return replace(with_quant(request, quant), usual=usual)


def _usual(request: CompileRequest, source: ModelSource, model: str) -> tuple[str, UsualRecipe]:
    there = package_there(request)
    if there is not None and there.build.get("recipe") in RECIPES:
        return str(there.build["recipe"]), UsualRecipe("that of the package that is there")
    if request.quant == MOBILE:
        return MOBILE, UsualRecipe("the checkpoint's own form")
    found = _by_kind(source)
    if found is not None:
        return found
    share = _share(request, source)
    return _by_name(model, request.adapters) if share is None else _by_share(share)


def usual_quant(source: ModelSource, table: Sequence[Parameter]) -> str:
    """The recipe of a source that is opened with its weights, and is none for phones.

    Raises
    ------
    CheckpointError
        If tensors of the source are not those of its config.
    """
    quant, _ = _by_kind(source) or _by_share(_sampled(source, table))
    return quant


def _by_kind(source: ModelSource) -> tuple[str, UsualRecipe] | None:
    """Of a model whose weights do not decide; None of all others."""
    if source.config.embedding is not None:
        return TRAINED_QUANT, UsualRecipe("that of encoders")
    if source.origin.get("kind") == TINY:
        why = f"`{TINY}` was trained with its weights rounded in this way"
        return TRAINED_QUANT, UsualRecipe(why)
    return None


def _by_share(share: float) -> tuple[str, UsualRecipe]:
    """Of a model so many of whose groups lie on levels."""
    if share < MOST:
        why = f"{1 - share:.0%} of the sampled groups of weights lie on no levels of 4 bits"
        return DEFAULT_QUANT, UsualRecipe(why)
    why = f"holds {share:.0%} of the sampled groups of weights exactly"
    return TRAINED_QUANT, UsualRecipe(why, is_trained=share >= _NEARLY_ALL)


def _by_name(model: str, adapters: Sequence[str]) -> tuple[str, UsualRecipe]:
    """Of a model whose weights, or those of adapters, are not here."""
    if adapters:
        why = "weights that an adapter is merged into lie on no levels of 4 bits"
        return DEFAULT_QUANT, UsualRecipe(why)
    if is_named_trained(model):
        why = "by its name the model was trained for these 4 bits"
        return TRAINED_QUANT, UsualRecipe(why, is_trained=True)
    return DEFAULT_QUANT, UsualRecipe("by its name the model was not trained for 4 bits")


def _share(request: CompileRequest, source: ModelSource) -> float | None:
    """The share of groups on levels; None where the weights are not here, or not whole."""
    if source.checkpoint is not None:
        return _sampled(source, model_parameters(source.config, ALL_COMPONENTS))
    try:
        with _opened(request) as found:
            if found is None:
                return None
            return _sampled(found, model_parameters(found.config, ALL_COMPONENTS))
    except Gemma4CompileError:  # which is said where the weights are wanted
        return None


@contextmanager
def _opened(request: CompileRequest) -> Iterator[ModelSource | None]:
    """The model and its adapters with their weights, where they are files here."""
    names = (request.model, *request.adapters)
    if not all(local_path(name).exists() for name in names):  # nothing is downloaded for a recipe
        yield None
        return
    with (
        without_warnings(),
        open_source(
            request.model,
            request.revision,
            weights=True,
            generation_config=False,
            modalities=request.modalities,
            adapters=request.adapters,
        ) as source,
    ):
        yield source


def _sampled(source: ModelSource, table: Sequence[Parameter]) -> float:
    assert source.checkpoint is not None, "opened with its weights"
    matched = match(source.checkpoint.tensors, source.config)
    return share_on_levels(table, row_reader(matched))

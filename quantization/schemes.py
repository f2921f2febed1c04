"""SCHEMES and RECIPES: what `--recipe` and `--quant` know.

A scheme is registered here; a recipe of the command line is a line of `recipes.json`, which the
options read, too, without loading the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.recipe import TOWER_ROLES, Recipe
from gemma4_compile.quantization.scheme import Scheme

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        GroupScheme(4, "float16"),
        GroupScheme(4, "float32"),
        GroupScheme(8, "float16"),
        GroupScheme(8, "float32"),
        DenseScheme("float16"),
        DenseScheme("float32"),
    )
}


def recipe_of(name: str, fields: Mapping[str, str]) -> Recipe:
    """A recipe from its line of the file.

    Parameters
    ----------
    fields : `activations`, a dtype; `weights`, a scheme; `small`, that of the few rows whose coarse
        steps cost far more quality than their bytes are worth (under 2 % of an E2B token)
    """
    activations = fields["activations"]
    schemes = {role: SCHEMES[fields["weights"]] for role in Role}
    for role in (Role.PER_LAYER_LINEAR, *TOWER_ROLES):
        schemes[role] = SCHEMES[fields["small"]]
    schemes[Role.VECTOR] = DenseScheme("float32")
    schemes[Role.ROUTER] = DenseScheme(activations)
    return Recipe(name, activations, MappingProxyType(schemes))


RECIPES: dict[str, Recipe] = {
    name: recipe_of(name, fields)
    for name, fields in json.loads(
        Path(__file__).with_name("recipes.json").read_text("utf-8")
    ).items()
}

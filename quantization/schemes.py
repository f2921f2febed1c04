"""SCHEMES and RECIPES: what `--recipe` and `--quant` know.

A scheme is registered here; a recipe of the command line is a line of `recipes.json`, which the
options read, too, without loading the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.options import package as options
from gemma4_compile.quantization.bfloat16 import BFloat16Scheme
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.minima import MinimaScheme
from gemma4_compile.quantization.recipe import TOWER_ROLES, Recipe
from gemma4_compile.quantization.rows import RowScheme
from gemma4_compile.quantization.scheme import Scheme

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        GroupScheme(4, "float16"),
        GroupScheme(4, "float32"),
        GroupScheme(6, "float16"),
        GroupScheme(6, "float32"),
        GroupScheme(8, "float16"),
        GroupScheme(8, "float32"),
        MinimaScheme(),
        RowScheme(2),
        RowScheme(4),
        RowScheme(8),
        RowScheme(2, 256),
        RowScheme(4, 256),
        RowScheme(2, any_inputs=True),
        RowScheme(4, any_inputs=True),
        RowScheme(8, any_inputs=True),
        DenseScheme("float16"),
        DenseScheme("float32"),
        BFloat16Scheme(),
    )
}


def recipe_of(name: str, fields: Mapping[str, Any]) -> Recipe:
    """A recipe from its line of the file.

    Parameters
    ----------
    fields : `activations`, a dtype; `weights`, a scheme; `small`, that of the few rows whose coarse
        steps cost far more quality than their bytes are worth (under 2 % of an E2B token). If they
        are there: `head`, that of the token embedding and of the head, which are one matrix where
        they are tied; `schemes`, others by patterns as in the file of `--recipe`
    """
    activations = fields["activations"]
    schemes = {role: SCHEMES[fields["weights"]] for role in Role}
    for role in (Role.TOKEN_EMBEDDING, Role.LM_HEAD):
        schemes[role] = SCHEMES[fields.get("head", fields["weights"])]
    for role in (Role.PER_LAYER_LINEAR, *TOWER_ROLES):
        schemes[role] = SCHEMES[fields["small"]]
    schemes[Role.VECTOR] = DenseScheme("float32")
    schemes[Role.ROUTER] = DenseScheme(activations)
    patterns = tuple((key, SCHEMES[value]) for key, value in fields.get("schemes", {}).items())
    return Recipe(name, activations, MappingProxyType(schemes), patterns)


MOBILE = recipe_of(
    options.MOBILE,
    {
        "activations": "float32",
        "weights": "q4f32_row",
        "head": "q2f32_row",
        "small": "q8f32_row",
        "schemes": {"drafter.*": "q4f32_1"},
    },
)
"""That of Google's checkpoints for phones, for no other: their own integers, steps and bits, which
are read off the checkpoint (`compile/own_schemes.py`)."""

RECIPES: dict[str, Recipe] = {
    name: recipe_of(name, fields)
    for name, fields in json.loads(
        Path(__file__).with_name("recipes.json").read_text("utf-8")
    ).items()
}
"""Those for any checkpoint."""

NAMED: dict[str, Recipe] = {**RECIPES, MOBILE.name: MOBILE}
"""All that a name stands for."""

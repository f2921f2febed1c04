"""`--recipe FILE`: a recipe with other schemes for the parameters that a pattern names.

The file is a JSON object ``{"schemes": {PATTERN: SCHEME, ...}}``. A pattern is matched against
whole parameter names as the shell matches file names (``embed_tokens``,
``layers.*.mlp.down_proj``); of several that match, the last one counts. A scheme is one of SCHEMES,
in MLC's spelling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from gemma4_compile.errors import QuantizationError, UsageError
from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.quantization.recipe import Recipe
from gemma4_compile.quantization.schemes import RECIPES, SCHEMES
from gemma4_compile.regular_files import read_stream

FIXED_ROLES = (Role.VECTOR, Role.ROUTER)  # a few bytes, and everything that follows depends on them
MAX_FILE_BYTES = 1 << 20
MAX_PATTERNS = 1024  # each is held against every parameter
MAX_PATTERN_LETTERS = 1024  # names of parameters are a tenth as long
_SHOWN_LETTERS = 80
_HINT = 'it looks like {"schemes": {"embed_tokens": "q8f16_1"}}'

Overrides = tuple[tuple[str, str], ...]


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


def read_recipe_file(path: Path) -> Overrides:
    """Patterns and schemes of a recipe file, in their order.

    Raises
    ------
    UsageError
        If the file cannot be read or has another form.
    """
    try:
        content = read_stream(path, MAX_FILE_BYTES)
        values = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except OSError as error:
        raise UsageError(
            f"--recipe: cannot read `{path}`: {error.strerror}", hint="check the file's name"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--recipe: `{path}` is damaged: {error}", hint=_HINT) from error
    schemes = values.get("schemes") if isinstance(values, dict) else None
    if not isinstance(schemes, dict) or set(values) != {"schemes"} or not schemes:
        raise UsageError(f"--recipe: `{path}` has no `schemes` alone", hint=_HINT)
    if len(schemes) > MAX_PATTERNS:
        raise UsageError(
            f"--recipe: `{path}` has {len(schemes)} patterns; expected at most {MAX_PATTERNS}",
            hint="a `*` names many parameters: layers.*.mlp.down_proj",
        )
    for pattern, name in schemes.items():
        if len(pattern) > MAX_PATTERN_LETTERS:
            raise UsageError(
                f"--recipe: pattern `{pattern[:_SHOWN_LETTERS]}...` has {len(pattern)} letters; "
                f"expected at most {MAX_PATTERN_LETTERS}",
                hint="names of parameters are shorter; --report lists them",
            )
        if not isinstance(name, str) or name not in SCHEMES:
            raise UsageError(
                f"--recipe: unknown scheme {str(name)[:40]!r} for `{pattern[:_SHOWN_LETTERS]}`",
                hint=f"known: {', '.join(SCHEMES)}",
            )
    return tuple(schemes.items())


def with_overrides(name: str, overrides: Sequence[Sequence[str]]) -> Recipe:
    """The recipe `name` with other schemes for what the patterns match.

    Raises
    ------
    UsageError
        If there is no such recipe or scheme.
    """
    if name not in RECIPES:
        raise UsageError(f"unknown quantisation `{name}`", hint=f"known: {', '.join(RECIPES)}")
    pairs = []
    for pattern, scheme in overrides:
        if scheme not in SCHEMES:
            raise UsageError(f"unknown scheme `{scheme}`", hint=f"known: {', '.join(SCHEMES)}")
        pairs.append((pattern, SCHEMES[scheme]))
    return replace(RECIPES[name], overrides=tuple(pairs))


def check_overrides(recipe: Recipe, parameters: Sequence[Parameter]) -> None:
    """Raise QuantizationError for a pattern that matches nothing, or what has to stay as it is."""
    for pattern, _ in recipe.overrides:
        matched = [item for item in parameters if fnmatchcase(item.name, pattern)]
        if not matched:
            raise QuantizationError(
                f"--recipe: pattern `{pattern[:_SHOWN_LETTERS]}` matches no parameter of the model",
                hint=f"parameters are called like `{parameters[0].name}`; --report lists them",
            )
        fixed = [item.name for item in matched if item.role in FIXED_ROLES]
        if fixed:
            raise QuantizationError(
                f"--recipe: pattern `{pattern[:_SHOWN_LETTERS]}` matches `{fixed[0]}`, whose "
                "scheme is fixed",
                hint="norms, scalars and routers are small and are never quantised",
            )

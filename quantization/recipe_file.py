"""`--recipe FILE`: a recipe with other schemes for the parameters that a pattern names.

The file is a JSON object ``{"schemes": {PATTERN: SCHEME, ...}}``. A pattern is matched against
whole parameter names as the shell matches file names (``embed_tokens``, ``*self_attn*``,
``layers.*.mlp.down_proj``); of several that match, the last one counts. It speaks of matrices: what
else it matches, norms and routers, stays as it is. A scheme is one of SCHEMES, in MLC's spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from gemma4_compile.errors import QuantizationError, UsageError
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.quantization.recipe import FIXED_ROLES, Recipe
from gemma4_compile.quantization.schemes import NAMED, SCHEMES
from gemma4_compile.system.regular_files import read_stream

MAX_FILE_BYTES = 1 << 20
MAX_PATTERNS = 1024  # each is held against every parameter
MAX_PATTERN_LETTERS = 1024  # names of parameters are a tenth as long
_SHOWN_LETTERS = 80
_CHECKPOINT_PREFIXES = ("model.language_model.", "language_model.", "model.")
_OPTIONAL_PARTS = {
    "vision_": "--modalities image",
    "embed_vision": "--modalities image",
    "audio_": "--modalities audio",
    "drafter.": "--drafter",
}
_NUMBER = re.compile(r"\.(\d+)\.")
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
                f"--recipe: `{path}`: unknown scheme {str(name)[:40]!r} for "
                f"`{pattern[:_SHOWN_LETTERS]}`",
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
    if name not in NAMED:
        raise UsageError(f"unknown quantisation `{name}`", hint=f"known: {', '.join(NAMED)}")
    pairs = []
    for pattern, scheme in overrides:
        if scheme not in SCHEMES:
            raise UsageError(f"unknown scheme `{scheme}`", hint=f"known: {', '.join(SCHEMES)}")
        pairs.append((pattern, SCHEMES[scheme]))
    return replace(NAMED[name], overrides=tuple(pairs))


def check_overrides(recipe: Recipe, parameters: Sequence[Parameter]) -> None:
    """Raise QuantizationError for a pattern that names no matrix."""
    for pattern, _ in recipe.overrides:
        matched = [item for item in parameters if fnmatchcase(item.name, pattern)]
        if not matched:
            raise QuantizationError(
                f"--recipe: pattern `{pattern[:_SHOWN_LETTERS]}` matches no parameter of the model",
                hint=_nearest(pattern, parameters),
            )
        if all(item.role in FIXED_ROLES for item in matched):
            raise QuantizationError(
                f"--recipe: pattern `{pattern[:_SHOWN_LETTERS]}` matches `{matched[0].name}`, "
                "whose scheme is fixed, and no matrix",
                hint="norms, scalars and routers are small and are never quantised",
            )


def _nearest(pattern: str, parameters: Sequence[Parameter]) -> str:
    """What a pattern that matches nothing may mean: tensors of a checkpoint, or like letters."""
    matrices = [item for item in parameters if item.role not in FIXED_ROLES]
    stem = pattern.removesuffix(".weight")
    for prefix in _CHECKPOINT_PREFIXES:
        stem = stem.removeprefix(prefix)
    for item in matrices:
        for source in item.sources:
            if any(fnmatchcase(name.removesuffix(".weight"), stem) for name in source.names):
                return f"what the checkpoint calls so is stored in `{item.name}`"
    for begin, option in _OPTIONAL_PARTS.items():
        if stem.startswith(begin):
            return f"a package holds such matrices with {option} alone"
    names = {_NUMBER.sub(".*.", item.name): None for item in matrices}
    wanted = _NUMBER.sub(".*.", stem)[:_SHOWN_LETTERS]
    near = get_close_matches(wanted, list(names), 3, 0.4) or list(names)[:3]
    shown = ", ".join(f"`{name}`" for name in near)
    return f"matrices are called like {shown}; --report lists them"

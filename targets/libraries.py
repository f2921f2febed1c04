"""Forms of a model library that a package may hold over one set of shards: LIBRARIES by name.

The registry is `libraries.json`, which the options read, too, without loading the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.targets.spec import FLOAT, INT8, NATIVE, WORDS


@dataclass(frozen=True)
class LibraryForm:
    """One library as it is asked for.

    Attributes
    ----------
    name : unique in its package
    activations : one of `targets.spec.ACTIVATIONS`, or `auto` for those of the limits
    float16 : NATIVE or WORDS, for recipes with float16
    """

    name: str
    target: str
    limits: str
    activations: str
    float16: str


AUTO = "auto"  # activations: those of the limits
ABOUT = ("use", "named", "experiment", "without_float16")
"""Entries for people; what has the second one is made only where it is named or all are, what has
the third one where it is named."""

_ENTRIES = json.loads(Path(__file__).with_name("libraries.json").read_text("utf-8"))
LIBRARIES: dict[str, LibraryForm] = {
    name: LibraryForm(name, **{key: value for key, value in entry.items() if key not in ABOUT})
    for name, entry in _ENTRIES.items()
}
EXPERIMENTS = frozenset(name for name, entry in _ENTRIES.items() if "experiment" in entry)
"""Those that no package has unless they are named."""
_WITHOUT_FLOAT16: dict[str, str] = {
    entry["limits"]: entry["without_float16"]
    for entry in _ENTRIES.values()
    if "without_float16" in entry
}
"""Limits that are others in a recipe without float16, of which they multiply nothing more."""


def form_name(target: str, limits: str, activations: str, float16: str | None) -> str:
    """The name of a library of that form: the registry's, or one made of what it is.

    Parameters
    ----------
    float16 : None where the recipe has none
    """
    forms = [one for one in LIBRARIES.values() if one.target == target]
    if len(forms) <= 1:
        return target
    for one in forms:
        is_same = one.limits == limits and one.activations in (activations, AUTO)
        if is_same and float16 in (one.float16, None):
            return one.name
    is_taken = limits in LIBRARIES  # by another form of these limits
    form = (INT8,) if activations == INT8 else (FLOAT,) if is_taken else ()
    return "-".join((limits, *form, *((WORDS,) if float16 == WORDS else ())))


def wider_libraries(targets: Collection[str]) -> tuple[str, ...]:
    """Names of those that compute in float32 with float16 weights, if each target has some."""
    names = [one for one in LIBRARIES.values() if one.float16 == WORDS]
    is_whole = set(targets) <= {one.target for one in names}
    return tuple(one.name for one in names if one.target in targets) if is_whole else ()


def fitting_forms(
    names: Sequence[str], *, has_float16: bool, takes_int8: bool
) -> tuple[LibraryForm, ...]:
    """The forms of those names that differ for a recipe, in order.

    Without float16, `f16` is `default` again and `h200-matrices` `h200`; without integer weights
    `int8` is `f16`. Of equal ones the registry's first is taken.

    Raises
    ------
    UsageError
        For an unknown name, or one that is given twice.
    """
    for name in names:
        if name not in LIBRARIES:
            raise UsageError(f"unknown library `{name}`", hint=f"known: {', '.join(LIBRARIES)}")
        if names.count(name) > 1:
            raise UsageError(f"library `{name}` is given twice", hint="give it once")

    def reduced(form: LibraryForm) -> LibraryForm:
        """The form without what the recipe does not have."""
        is_float = form.activations == INT8 and not takes_int8
        limits = form.limits
        return replace(
            form,
            limits=limits if has_float16 else _WITHOUT_FLOAT16.get(limits, limits),
            activations=FLOAT if is_float else form.activations,
            float16=form.float16 if has_float16 else NATIVE,
        )

    firsts: dict[LibraryForm, LibraryForm] = {}
    for form in map(reduced, LIBRARIES.values()):
        firsts.setdefault(replace(form, name=""), form)
    return tuple(
        dict.fromkeys(firsts[replace(reduced(LIBRARIES[name]), name="")] for name in names)
    )

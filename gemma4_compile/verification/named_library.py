"""Which library of a package is verified: its main one, or one that is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.interface import DEVICE
from gemma4_compile.package.partial_build import OF_LIBRARY
from gemma4_compile.targets.spec import WORDS
from gemma4_compile.verification.build_fields import FLOAT16


def with_main(package: Path, provenance: Provenance, named: str | None) -> Provenance:
    """The same package as it would be with the named library as its main one.

    Parameters
    ----------
    named : a library's name; None for the main one

    Raises
    ------
    UsageError
        If the package has no library of that name; the message lists those that it has.
    """
    if named is None:
        return provenance
    found = next((one for one in provenance.libraries if one.name == named), None)
    if found is None:
        has = ", ".join(one.name for one in provenance.libraries) or "none"
        raise UsageError(
            f"--library: `{package}` has no library `{named}` (it has: {has})",
            hint="choose one of them, or leave --library out for the main one"
            if provenance.libraries
            else "compile the package with its library first",
        )
    if found is provenance.libraries[0]:
        return provenance
    rest = {name: value for name, value in provenance.build.items() if name not in OF_LIBRARY}
    build = {
        **rest,
        "target": found.target,
        **({} if found.device == found.target else {DEVICE: found.device}),
        "limits": found.limits,
        "activations": found.activations,
        **({FLOAT16: WORDS} if found.float16 == WORDS else {}),
        "requirements": found.requirements,
    }
    others = (one for one in provenance.libraries if one is not found)
    return replace(provenance, library=found.file, build=build, libraries=(found, *others))

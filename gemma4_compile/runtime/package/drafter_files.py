"""Files of a package that only its drafter has: who wants no guesses does without them."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile import abi
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.interface import DRAFTER

HINT = (
    "fetch or compile the package again; gemma4-chat and gemma4-serve run files that you changed "
    "yourself with --check off"
)


def is_of_drafter(name: str) -> bool:
    """Return whether a file is there for the drafter alone."""
    return name == abi.DRAFTER_CACHE_FILE or name.startswith(abi.DRAFTER_SHARD)


def hint_for(name: str) -> str:
    """What to do about a file that is missing or damaged."""
    if is_of_drafter(name):
        return f"it is the drafter's, without which --draft 0 runs the package; else {HINT}"
    return HINT


def without_drafter(provenance: Provenance) -> Provenance:
    """The same package as it would be without its drafter, whose files nobody reads then."""
    files = {n: value for n, value in provenance.files.items() if not is_of_drafter(n)}
    build = {name: value for name, value in provenance.build.items() if name != DRAFTER}
    return replace(provenance, files=files, build=build)

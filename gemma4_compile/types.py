"""Types of values that all parts of the project pass on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # what only passes JSON on does without NumPy
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
"""An array whose dtype is known when the program runs."""
JsonObject: TypeAlias = dict[str, Any]
"""A JSON object that the project makes; what it reads is `Mapping[str, object]`, to be checked."""

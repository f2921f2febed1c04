"""Loading of the compiler, without what it would load for nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Keep TVM from loading torch, where it is installed: four seconds for nothing.

    It loads torch for the arrays that a program may hold, of which there are none here.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # "not installed", to an import
    try:
        yield
    finally:
        del sys.modules["torch"]

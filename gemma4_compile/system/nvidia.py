"""Folders in which `pip` puts NVIDIA's wheels; both the compiler and the runtime look there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

CUDA = "cu13"
"""Folder of the wheels of CUDA 13, the version that apache-tvm's runtime is built with."""
OLDEST_GPU = 7, 5
"""Compute capability of Turing, the oldest GPU that CUDA 13 knows."""
OLDEST_DRIVER = 580
"""The first one that knows CUDA 13."""
INSTALL = "pip install 'gemma4-compile[cuda]'"


def wheel_folders() -> Iterator[Path]:
    """The folders that have a `lib` and an `include` of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations if spec is not None else None) or ():
        folder = Path(location, CUDA)
        if folder.is_dir():
            yield folder

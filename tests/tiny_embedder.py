"""The package of `tiny-embedding` that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.compile.request import CompileRequest
from tests.packages import compile_small
from tests.shared import made_once, shared_folder


def embedder_package(tmp_path_factory: pytest.TempPathFactory, quant: str = "f32") -> Path:
    """Compile it for the CPU, once a run."""

    def compiled(output: Path) -> None:
        compile_small(CompileRequest("tiny-embedding", "cpu", quant, output))

    folder = shared_folder(tmp_path_factory) / "tiny-embedding"
    return made_once(folder / quant, compiled)

"""Small calibrated packages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gemma4_compile import abi
from gemma4_compile.calibration.calibrate import calibrating
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.package.artifacts import TensorCache, read_artifact
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES, SCHEMES
from gemma4_compile.verification.stored_weights import StoredWeights
from tests import models
from tests.packages import Silent

TEXT = "A text of the tests, with numbers 0 1 2 3, that says little. " * 8
SCHEME = SCHEMES["q4f16_1"]


def checkpoint(folder: Path, kind: str, **fields: Any) -> models.Checkpoint:
    text = {**models.KINDS[kind], **fields}
    return models.write_checkpoint(folder / "model", text, dtype="bfloat16")


def compiled(
    made: models.Checkpoint, folder: Path, quant: str = "q4f16", *, allow_nonfinite: bool = False
) -> StoredWeights:
    """Stored weights of a calibrated package, in `folder`."""
    (folder / "text").write_text(TEXT)
    request = CompileRequest(str(made.path), "cpu", quant, folder / "out", only="weights")
    request = replace(request, allow_nonfinite=allow_nonfinite)
    with calibrating(folder / "out", folder / "text") as calibrator:
        compile_model(request, Silent(), calibrator)
    return stored(made, folder / "out", quant)


def stored(made: models.Checkpoint, package: Path, quant: str = "q4f16") -> StoredWeights:
    values = json.loads((made.path / "config.json").read_text())
    plan = storage_plan(parameter_table(Gemma4Config.from_dict(values)), RECIPES[quant], None)
    cache = TensorCache.from_json(read_artifact(package / abi.TENSOR_CACHE_FILE))
    return StoredWeights(package, cache, plan)


def plain(values: np.ndarray) -> np.ndarray:
    matrix = values.reshape(-1, values.shape[-1])
    return SCHEME.load(SCHEME.store(matrix, name="weight", first_row=0))

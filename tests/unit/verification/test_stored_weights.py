"""Weights read back from a package by the checkpoint's names, against packing done by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.package.artifacts import TensorCache, read_artifact
from gemma4_compile.quantization.groups import GroupScheme, dequantize, quantize
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.verification.stored_weights import StoredWeights
from tests import models, packages


def open_weights(
    tmp_path: Path, kind: str, recipe: str, binding: int | None = None
) -> tuple[models.Checkpoint, StoredWeights]:
    checkpoint = models.write_checkpoint(tmp_path / "model", models.ALL[kind])
    package = tmp_path / "package"
    request = CompileRequest(str(checkpoint.path), "cpu", recipe, package, only="weights")
    packages.compile_small(request)
    cache = TensorCache.from_json(read_artifact(package / abi.TENSOR_CACHE_FILE))
    table = parameter_table(packages.config_of(checkpoint))
    return checkpoint, StoredWeights(package, cache, storage_plan(table, RECIPES[recipe], binding))


@pytest.mark.parametrize("kind", [*models.KINDS, "e4b, untied"])
def test_float32_weights_come_back_as_they_were(kind: str, tmp_path: Path) -> None:
    checkpoint, weights = open_weights(tmp_path, kind, "f32")
    for name, values in checkpoint.weights.items():
        rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values
        np.testing.assert_allclose(weights.read(name, 0, len(rows)), rows, rtol=1e-6)
        middle = len(rows) // 3
        np.testing.assert_allclose(
            weights.read(name, middle, len(rows)), rows[middle:], rtol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("kind", ["e2b", "moe", "dense, untied"])
def test_quantised_weights_come_back_as_they_are_stored(kind: str, tmp_path: Path) -> None:
    checkpoint, weights = open_weights(tmp_path, kind, "q4f16")
    schemes = RECIPES["q4f16"].schemes
    for parameter in parameter_table(packages.config_of(checkpoint)):
        scheme = schemes[parameter.role]
        for source in parameter.sources:
            values = checkpoint.weights[source.name]
            rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values
            if isinstance(scheme, GroupScheme):
                expected = dequantize(*quantize(rows, scheme), scheme)
            else:
                dtype = np.float16 if parameter.role is Role.ROUTER else np.float32
                expected = rows.astype(dtype).astype(np.float32)
            found = weights.read(source.name, 0, len(rows))
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=source.name)


def test_damaged_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"holds no tensor .*part0"):
        open_weights(tmp_path / "parts", "e2b", "f32", 128 << 10)
    _, _ = open_weights(tmp_path, "e2b", "f32")
    package = tmp_path / "package"
    cache = TensorCache.from_json(read_artifact(package / abi.TENSOR_CACHE_FILE))
    shard = package / "params_shard_0.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"expected .* bytes, found"):
        StoredWeights(package, cache, ())
    shard.unlink()
    with pytest.raises(ArtifactError, match="cannot read the weight shard"):
        StoredWeights(package, cache, ())

"""Compiles small checkpoints into native packages, and reads back what their weights mean."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile import abi
from gemma4_compile.compile import build
from gemma4_compile.compile.pipeline import Summary, compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.device_check import known_answers
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.kv_cache import KvLimits
from gemma4_compile.model_spec.parameters import Arrangement, Parameter
from gemma4_compile.planning import plan
from gemma4_compile.progress import ByteProgress, Reporter
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.runtime import Package
from gemma4_compile.targets import spec
from tests import models

Float32Array = npt.NDArray[np.float32]

CONTEXT_LENGTH = 96
PREFILL_CHUNK = 12


class Silent:
    """A reporter that says nothing."""

    def stage(self, text: str) -> None:
        del text

    @contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        del text, total_bytes
        yield lambda count: None


@contextmanager
def unoptimised() -> Iterator[None]:
    """Compile host code as LLVM does without effort: a third of the time, for a few small steps.

    Rounding is the same: LLVM reorders no sums. `tests/parity/test_float32.py`, `tests/e2e`, with
    drafters of two kinds alone, and the tests of `tiny` compile as users do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "HOST_OPTIONS", {**spec.HOST_OPTIONS, "opt-level": 0})
        yield


@contextmanager
def without_known_answers() -> Iterator[None]:
    """Compile for browsers without results to test a device by: a fifth of a small model's time.

    Those of `tiny` are there (`tests/web/test_known_answers.py`).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_answers, "choose", lambda *_: [])
        yield


@contextmanager
def divided_keys(most_bytes: int | None) -> Iterator[None]:
    """Compile as for a target that binds so little of K or V at once; None for all of it.

    Weights and activations are as ever, so that nothing but the parts of full layers differs.
    """
    with pytest.MonkeyPatch.context() as patch:
        if most_bytes is not None:
            for module in (build, plan):
                patch.setattr(
                    module, "kv_limits", lambda target, context: KvLimits(context, most_bytes)
                )
        yield


def compile_small(request: CompileRequest, reporter: Reporter | None = None) -> Summary:
    """Compile a model of a few thousand weights that runs a few steps; see `unoptimised`."""
    with unoptimised():
        return compile_model(request, reporter or Silent())


def compile_package(
    model: Path | str,
    recipe: str,
    directory: Path,
    *,
    context_length: int = CONTEXT_LENGTH,
    library_of: Path | None = None,
    activations: str = "float",
    target: str = "cpu",
    optimised: bool = True,
    float16: str = spec.NATIVE,
    key_bytes: int | None = None,
) -> Path:
    """Compile a checkpoint directory, or `tiny`; return the package's directory.

    `library_of` is a package of the same config and recipe whose library is taken over;
    `optimised` is whether the CPU's code is what users get, which takes long; `key_bytes` as of
    `divided_keys`.
    """
    request = CompileRequest(
        model=str(model),
        target=target,
        quant=recipe,
        output=directory,
        context_length=context_length,
        prefill_chunk=PREFILL_CHUNK,
        activations=activations,
        float16=float16,
        only=None if library_of is None else "weights",
    )
    with divided_keys(key_bytes):
        if optimised:
            compile_model(request, Silent())
        else:
            compile_small(request)
    if library_of is not None:
        library = Package.open(library_of).library_path.name
        shutil.copyfile(library_of / library, directory / library)
        list_files(directory, library)
    return directory


def list_files(package: Path, library: str | None = None) -> None:
    """Make the provenance list the files as they are now: a test has changed some on purpose.

    `library` is the main library's file, if it has another name or is a new one.
    """
    path = package / abi.PROVENANCE_FILE
    values = json.loads(path.read_text())
    values["files"] = {
        file.name: {
            "nbytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in sorted(package.iterdir())
        if file != path
    }
    if library is not None:
        listed = (one for one in values.get("libraries", []) if one["file"] == values["library"])
        # Without a list a package has the one that its build describes.
        values["libraries"] = [{**one, "file": library} for one in listed] or None
        values["library"] = library
    path.write_text(json.dumps(values))


def config_of(checkpoint: models.Checkpoint) -> Gemma4Config:
    return Gemma4Config.from_dict(
        models.config_file(checkpoint.text_config, "hub", checkpoint.dtype)
    )


def dequantised_weights(
    package: Path, checkpoint: models.Checkpoint, recipe: str
) -> dict[str, Any]:
    """The float32 weights that a package's tensors mean, under the checkpoint's names."""
    config = config_of(checkpoint)
    opened = Package.open(package)
    stored = {name: np.asarray(array) for name, array in opened.map_weights()}
    weights: dict[str, Float32Array] = {}
    for entry in storage_plan(model_parameters(config, COMPONENTS), RECIPES[recipe], None):
        values = _values(entry, stored) / np.float32(entry.parameter.scale)
        weights.update(sources_of(entry.parameter, values))
    return weights


def _values(entry: StoredParameter, stored: Mapping[str, npt.NDArray[Any]]) -> Float32Array:
    parts = []
    for part in entry.row_splits:
        arrays = [stored[tensor.name] for tensor in part.tensors]
        parts.append(entry.scheme.load(arrays))
    return np.concatenate(parts)


def sources_of(parameter: Parameter, values: Float32Array) -> dict[str, Float32Array]:
    sources = parameter.sources
    if parameter.arrangement is Arrangement.INTERLEAVE_ROWS:
        return {source.name: values[index::2] for index, source in enumerate(sources)}
    if parameter.arrangement is Arrangement.STACK:
        return {source.name: row for source, row in zip(sources, values, strict=True)}
    if len(sources[0].shape) == 3:
        stack = values.reshape(sources[0].shape)
        if parameter.arrangement is Arrangement.INTERLEAVE_HALVES:
            stack = np.concatenate([stack[:, 0::2], stack[:, 1::2]], axis=1)
        return {sources[0].name: stack}
    ends = np.cumsum([source.shape[0] for source in sources])[:-1]
    pieces = np.split(values, ends)
    return {source.name: piece for source, piece in zip(sources, pieces, strict=True)}

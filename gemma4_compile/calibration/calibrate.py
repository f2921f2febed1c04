"""`--calibrate`: the integers of a model's matrices, chosen by what it computes from a text.

The text is the user's, or the model's own: it goes on from prompts that ship. What is chosen lies
on disk, layer by layer, and takes the place of the checkpoint's tensors: its values lie on the grid
of their scheme, so that storing them changes nothing.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gemma4_compile.calibration import spool
from gemma4_compile.calibration.schemes import CalibratedScheme, calibrated
from gemma4_compile.calibration.text import OPTION, Rows, TextReader, read_file
from gemma4_compile.checkpoint.files import TOKENIZER_FILE
from gemma4_compile.checkpoint.match import Checkpoint, row_reader
from gemma4_compile.checkpoint.nonfinite import finite_reader
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.compile.compilation import (
    Calibration,
    Compilation,
    fingerprint,
    matched_tensors,
)
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.package import artifacts
from gemma4_compile.package.files import hash_file
from gemma4_compile.progress import Reporter

if TYPE_CHECKING:  # it needs torch and transformers
    from gemma4_compile.calibration.streaming import StreamedModel

METHOD = "gptq-3"  # another number where other codes would be chosen
INSTALL_HINT = "pip install 'gemma4-compile[verify]'"
_ROLES = (Role.LINEAR, Role.PER_LAYER_LINEAR, Role.EXPERTS)
_PREFIXES = ("layers.", "per_layer_model_projection.")  # of the text decoder
_TIMES = 2  # that the model goes on from every prompt
_TOKENS = 96  # that it writes each time
_SEED = 0


def calibrated_schemes(build: Compilation) -> dict[str, CalibratedScheme]:
    """Schemes of the tensors whose integers are chosen: what the decoder's layers hold in 4 bits.

    Tables are read by row, and the head has 8 bits; towers and drafters take no part in the text.
    """
    return {
        source.name: scheme
        for one in build.own_storage
        for scheme in [calibrated(one.scheme)]
        for source in one.parameter.sources
        if scheme is not None and one.parameter.role in _ROLES and source.name.startswith(_PREFIXES)
    }


@dataclass(frozen=True)
class Calibrator:
    """Calibrates a compilation.

    Attributes
    ----------
    file : the text; None lets the model write its own
    steps : tokens that it then writes after every prompt
    """

    spool: spool.Spool
    streaming: ModuleType
    layers: ModuleType
    file: Path | None = None
    steps: int = _TOKENS

    def __call__(self, build: Compilation, reporter: Reporter) -> Compilation:
        """The compilation with chosen integers.

        Raises
        ------
        UsageError
            If the recipe has no matrix of 4 bits in the layers, the text is no text, or the
            checkpoint fixes the steps of activations.
        """
        if build.config.embedding is not None:
            raise UsageError(
                f"{OPTION}: an encoder's integers are not chosen by a text yet",
                hint=f"leave out {OPTION}",
            )
        if build.config.rounds_activations:
            raise UsageError(
                f"{OPTION}: the weights of this checkpoint were trained for the steps that its "
                "activations are rounded to",
                hint=f"leave out {OPTION}",
            )
        schemes = calibrated_schemes(build)
        if not schemes:
            raise UsageError(
                f"{OPTION}: recipe `{build.recipe.name}` stores no matrix of the layers in 4 bits",
                hint=f"leave out {OPTION}, or choose --quant q4f16 or q4kf16",
            )
        matched = matched_tensors(build)
        model = self._model(build, matched)
        rows = self._text(build, model, reporter)
        total = sum(4 * prod(matched[name].shape) for name in schemes)
        with reporter.progress("choosing weights by a text", total) as advance:
            advance(0)
            self.layers.LayerCalibration(self.spool, schemes, advance).run(model, rows)
        parts = sorted({self.layers.part_of(name) for name in schemes})
        tensors: dict[str, TensorInfo] = {}
        for part in parts:
            tensors |= self.spool.tensors(part, matched, schemes)
        assert tensors.keys() == schemes.keys(), "every matrix was visited"
        entry = {
            "method": METHOD,
            "text": "own" if self.file is None else "given",
            "sha256": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
            "tokens": sum(map(len, rows)),
            **({"seed": _SEED} if self.file is None else {}),
            **self._machine(model),
        }
        return replace(
            build, calibration=Calibration(entry, tensors, spool.stored_readers(tensors))
        )

    def _model(self, build: Compilation, matched: Mapping[str, TensorInfo]) -> StreamedModel:
        read = row_reader(matched)
        read = finite_reader(read) if build.allow_nonfinite else read
        shapes = {
            source.name: source.shape
            for one in build.own_storage
            for source in one.parameter.sources
        }
        text = self.streaming.text_config(_checkpoint(build).config)
        model: StreamedModel = self.streaming.StreamedModel(text, build.config.dtype, read, shapes)
        return model

    def _text(self, build: Compilation, model: StreamedModel, reporter: Reporter) -> Rows:
        """The sequences, an earlier run's where its files belong to the same calibration."""
        file = None if self.file is None else hash_file(self.file).sha256
        key = artifacts.digest(
            {
                "build": fingerprint(build),
                "method": METHOD,
                "text": [file, self.steps, _TIMES, _SEED],
                **self._machine(model),
            }
        )
        found = self.spool.text(key)
        if found is not None:
            reporter.stage("going on from the layers that an earlier run finished")
            return found
        reader = TextReader.open(
            _checkpoint(build).path / TOKENIZER_FILE, build.config.bos_token_id
        )
        vocabulary = build.config.vocab_size
        if self.file is not None:
            rows = reader.given(self.file, vocabulary)
        else:
            prompts = reader.prompts(vocabulary) * _TIMES
            with reporter.progress(
                "writing a text to calibrate on, a pass over the layers for each token",
                self.steps * _layer_bytes(build),
            ) as advance:
                advance(0)
                rows = model.continued(
                    prompts,
                    self.steps,
                    _SEED,
                    build.suppressed,
                    reader.ends(build.config.eos_token_id),
                    lambda count: advance(count * _layer_bytes(build)),
                )
        self.spool.note_text(key, rows)
        return rows

    @staticmethod
    def _machine(model: StreamedModel) -> dict[str, object]:
        """What rounding in float32 depends on."""
        names = ("torch", "transformers")
        versions = {name: importlib.metadata.version(name) for name in names}
        return {"device": model.device.type, "versions": versions}


def _checkpoint(build: Compilation) -> Checkpoint:
    assert build.source.checkpoint is not None, "weights are calibrated"
    return build.source.checkpoint


def _layer_bytes(build: Compilation) -> int:
    """Float32 bytes of all layers."""
    named = (one.parameter for one in build.own_storage)
    return sum(4 * prod(one.shape) for one in named if one.name.startswith(_PREFIXES[0]))


def _modules() -> tuple[ModuleType, ModuleType]:
    """The modules that need torch."""
    try:
        from gemma4_compile.calibration import layers, streaming
    except ImportError as error:
        raise UsageError(
            f"{OPTION} needs torch and transformers: {error}", hint=INSTALL_HINT
        ) from error
    return streaming, layers


@contextmanager
def calibrating(output: Path, file: Path | None) -> Iterator[Calibrator]:
    """A calibrator whose finished layers stay until the block ends well.

    Raises
    ------
    UsageError
        If torch is not installed, or the file is no text.
    ArtifactError
        If another run is calibrating for the same output.
    """
    streaming, layers = _modules()
    if file is not None:
        read_file(file)  # before anything is downloaded
    with spool.opened(spool.place(output)) as opened:
        yield Calibrator(opened, streaming, layers, file)
        opened.remove()

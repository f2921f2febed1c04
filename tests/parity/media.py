"""Compiled models whose context holds rows of pictures and sounds, next to transformers.

The rows are random: what makes them of pictures and sounds is not part of these tests. So the
package is one of text alone, and its library is exchanged for one of the same decoder with image
input, which takes the same weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir.transform import Pass

from gemma4_compile import abi
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.passes.attach_metadata import AttachMetadata
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.recipe import Recipe, storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.device.device import view
from gemma4_compile.runtime.engine.chunks import chunks
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.targets import TargetSpec, link, target_spec
from tests import hf_media, models, packages, tolerances
from tests.hf_media import Context
from tests.parity.conftest import PROMPTS_TRIED, margin

Float32Array = npt.NDArray[np.float32]
Letters = Sequence[tuple[str, int]]

CPU = target_spec("cpu")
CONTEXT_LENGTH, PREFILL_CHUNK = 160, 40
ROW_DEVIATION = 3.0  # about that of a scaled token embedding

BIDIRECTIONAL = {"use_bidirectional_attention": "vision"}
KINDS: Mapping[str, dict[str, Any]] = {
    "dense": {**models.DENSE_LIKE, **BIDIRECTIONAL},
    "moe": {**models.MOE_LIKE, **BIDIRECTIONAL},
    "unified": models.UNIFIED_LIKE,
    "e2b": models.E2B_LIKE,
    "e4b": models.E4B_LIKE,
}
UNTIED: Mapping[str, dict[str, Any]] = {
    f"{kind}, untied": {**KINDS[kind], "tie_word_embeddings": False} for kind in ("e2b", "unified")
}
WHOLE_IMAGES = ("dense", "moe", "unified")
MODALITIES = {"t": abi.MODALITY_TEXT, "p": abi.MODALITY_MEDIA, "s": abi.MODALITY_AUDIO}

_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_IMAGE_TOKENS = {
    "boi_token_id": 250,
    "image_token_id": 251,
    "eoi_token_id": 252,
    "video_token_id": 253,
}


def config_with_pictures(text: Mapping[str, Any]) -> Gemma4Config:
    """A decoder's config with a small vision section."""
    values = models.config_file(text, "hub", "float32")
    vision = {} if values["model_type"] == "gemma4_unified" else _VISION
    return Gemma4Config.from_dict(
        {**values, **_IMAGE_TOKENS, "vision_config": vision},
        modalities=frozenset({Modality.TEXT, Modality.IMAGE}),
    )


def context(letters: Letters, width: int, seed: int = 0) -> Context:
    """Runs of text (t), of a picture's rows (p) and of a sound's (s), all random."""
    count = sum(length for _, length in letters)
    modality = np.concatenate([np.full(length, MODALITIES[kind]) for kind, length in letters])
    rng = np.random.default_rng([seed, count])
    rows = rng.normal(0, ROW_DEVIATION, (count, width)).astype(np.float32)
    return Context(models.prompt(count, seed=seed), modality, rows)


@dataclass(frozen=True)
class OfText:
    """A checkpoint with its package of text alone."""

    checkpoint: models.Checkpoint
    package: Path


_OF_TEXT: dict[tuple[str, str, int], OfText] = {}


def package_of_text(
    text: Mapping[str, Any],
    folder: Path,
    recipe: str = "f32",
    context_length: int = CONTEXT_LENGTH,
) -> OfText:
    """Compile it, once for all libraries that take the place of its own."""
    key = (json.dumps(text), recipe, context_length)
    if key not in _OF_TEXT:
        checkpoint = models.write_checkpoint(folder / "checkpoint", text)
        request = CompileRequest(
            model=str(checkpoint.path),
            target="cpu",
            quant=recipe,
            output=folder / "of text",
            context_length=context_length,
            prefill_chunk=PREFILL_CHUNK,
        )
        packages.compile_small(request)
        _OF_TEXT[key] = OfText(checkpoint, request.output)
    return _OF_TEXT[key]


def compile_with_pictures(
    text: Mapping[str, Any],
    folder: Path,
    config: Gemma4Config,
    recipe: str,
    spec: TargetSpec,
    context_length: int = CONTEXT_LENGTH,
) -> tuple[Path, dict[str, Float32Array]]:
    """A package for the CPU whose library is built of `config`, and what its weights mean."""
    of_text = package_of_text(text, folder, recipe, context_length)
    checkpoint = of_text.checkpoint
    package = shutil.copytree(of_text.package, folder / "package")
    with packages.unoptimised():
        _exchange_library(package, config, RECIPES[recipe], spec)
    return package, packages.dequantised_weights(package, checkpoint, recipe)


def _exchange_library(
    package: Path, config: Gemma4Config, recipe: Recipe, spec: TargetSpec
) -> None:
    library = Package.open(package).library_path
    metadata = NativeLibrary(library).metadata()
    plan = storage_plan(parameter_table(config), recipe, spec.max_binding_bytes)
    options = decoder_options(recipe, spec, PREFILL_CHUNK)
    module = lower(build_module(config, recipe, spec, options, plan, (TEXT,)), spec)
    attach: Pass = AttachMetadata(metadata)
    # The file is loaded: to write into it would change this process.
    exchanged = library.with_name(f"pictures-{library.name}")
    link(generate(attach(module), spec), exchanged, spec)
    library.unlink()
    packages.list_files(package, exchanged.name)


@dataclass(frozen=True)
class MediaCase:
    """One package, opened, and its truth: transformers in float32 on the same weights."""

    config: Gemma4Config
    engine: Engine
    model: Any
    whole_images: bool
    tolerance: float
    routing_gap: float
    _truths: dict[bytes, Float32Array] = field(default_factory=dict)

    @property
    def window(self) -> int:
        return self.config.sliding_window

    def truth(self, given: Context) -> Float32Array:
        """Logits (S, vocab_size) that transformers gives for one whole sequence."""
        key = given.ids.tobytes() + given.modality.tobytes() + given.rows.tobytes()
        if key not in self._truths:
            self._truths[key] = hf_media.logits(self.model, given)
        return self._truths[key]

    def context(self, letters: Letters, *, seed: int = 0) -> Context:
        """Random rows for which every choice of experts is decided; see `Case.prompt`."""
        for one in range(seed, seed + PROMPTS_TRIED):
            made = context(letters, self.config.hidden_size, one)
            if not self.config.num_experts:
                return made
            if hf_media.routing_gap(self.model, made) > self.routing_gap:
                return made
        raise AssertionError(f"none of {PROMPTS_TRIED} contexts {letters} is decided")

    def prefill(
        self, given: Context, begin: int, end: int, longest: int = PREFILL_CHUNK
    ) -> dict[int, Float32Array]:
        """Add given[begin:end], at most `longest` at a time; logits of each chunk's last row."""
        modality = given.modality[begin:end].tolist()
        found = {}
        for part in chunks(modality, longest, whole_images=self.whole_images):
            first, last = begin + part.start, begin + part.stop
            found[last - 1] = prefill_rows(self.engine, given[first:last])
        return found

    def decode(self, given: Context, begin: int, end: int) -> dict[int, Float32Array]:
        """Add tokens one at a time; logits by position."""
        assert not given.modality[begin:end].any()
        return {i: self.engine.decode(int(given.ids[i])) for i in range(begin, end)}

    def check(self, given: Context, found: Mapping[int, Float32Array]) -> None:
        """Compare logits by position, and the greedy token wherever the truth has decided."""
        truth = self.truth(given)
        for position, logits in found.items():
            expected = truth[position]
            assert np.isfinite(logits).all()
            np.testing.assert_allclose(
                logits, expected, rtol=0, atol=self.tolerance, err_msg=f"row {position}"
            )
            if margin(expected) > 2 * self.tolerance:
                assert logits.argmax() == expected.argmax(), f"row {position}"


def prefill_rows(engine: Engine, given: Context) -> Float32Array:
    """One call of the library with rows of any modality; logits of the last one."""
    count, is_text = len(given), given.modality == abi.MODALITY_TEXT
    ids = np.where(is_text, given.ids, 0).astype(np.int32)
    place, runner = engine.device.place, engine.runner
    embedded = engine.device.read(runner.embed(place(ids), runner.params))
    embedded[~is_text] = given.rows[~is_text]
    numbers = (view(place(a), (1, count)) for a in (ids, given.modality.astype(np.int32)))
    logits = runner.run(engine.sequence, place(embedded), *numbers)
    return engine.device.read(logits).reshape(-1)


def text_of(kind: str, context_length: int = CONTEXT_LENGTH) -> dict[str, Any]:
    """The config of a kind's decoder, with so many positions or more."""
    text = {**KINDS, **UNTIED}[kind]
    positions = max(context_length, text["max_position_embeddings"])
    return {**text, "max_position_embeddings": positions}


def make_case(
    kind: str,
    folder: Path,
    config: Callable[[Gemma4Config], Gemma4Config] = lambda same: same,
    recipe: str = "f32",
    spec: TargetSpec = CPU,
    context_length: int = CONTEXT_LENGTH,
) -> MediaCase:
    """Compile a kind; the truth is that of `KINDS`, whatever `config` makes of the library's."""
    text = text_of(kind, context_length)
    right = config_with_pictures(text)
    package, weights = compile_with_pictures(
        *(text, folder, config(right), recipe, spec, context_length)
    )
    return MediaCase(
        config=right,
        engine=Engine.open(package),
        model=hf_media.load(text, weights),
        whole_images=right.whole_images,
        tolerance=tolerances.ACTIVATIONS[recipe],
        routing_gap=tolerances.ROUTING_GAPS[recipe],
    )

"""Packages that the WebGPU tests compare: one model, compiled for webgpu and for cpu."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.model_spec.modality import TEXT_ONLY
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets.libraries import EXPERIMENTS, LIBRARIES, fitting_forms
from gemma4_compile.targets.spec import NATIVE
from tests import gemma3n, models, routing
from tests.packages import Silent, compile_small, without_known_answers
from tests.shared import made_once

TINY = "tiny"
DRAFTED = "tiny-drafted"
"""The same with its drafter."""
SEEING = "tiny-seeing"
"""The same with its towers."""
EMBEDDING = "tiny-embedding"
"""The embedder that ships."""
EVERY = tuple(
    name for name, form in LIBRARIES.items() if form.target == "webgpu" and name not in EXPERIMENTS
)
"""Libraries of a package for every browser, as `gemma4-compile` makes one."""
USUAL = ("float", "default", NATIVE)
"""How decoding takes its vectors, the device's limits and float16, where a test names none."""
SEEING_LITTLE = "tiny-seeing-little"
"""The same with room for a quarter of the usual rows: devices in software are slow."""


@dataclass(frozen=True)
class Sizes:
    """What a model is compiled with: small, so that prompts pass several windows and chunks."""

    context_length: int
    prefill_chunk: int


SIZES = {
    TINY: Sizes(context_length=512, prefill_chunk=24),
    DRAFTED: Sizes(context_length=512, prefill_chunk=24),
    EMBEDDING: Sizes(context_length=64, prefill_chunk=64),
    SEEING: Sizes(context_length=1000, prefill_chunk=300),
    SEEING_LITTLE: Sizes(context_length=512, prefill_chunk=24),
    "e2b": Sizes(context_length=96, prefill_chunk=12),
    "e4b": Sizes(context_length=96, prefill_chunk=12),
    "dense": Sizes(context_length=96, prefill_chunk=12),
    "unified": Sizes(context_length=96, prefill_chunk=12),
    "moe": Sizes(context_length=96, prefill_chunk=12),
    **dict.fromkeys(
        [*models.ODD_HEADS, *models.UNTIED, *gemma3n.KINDS],
        Sizes(context_length=96, prefill_chunk=12),
    ),
}
WINDOWS = {
    TINY: 32,
    **{kind: int(config["sliding_window"]) for kind, config in models.ALL.items()},
}


@dataclass
class Compiler:
    """Compiles on demand, each package once a run: `root` is shared by its processes."""

    root: Path

    def __call__(
        self,
        model: str,
        target: str,
        quant: str,
        activations: str = "float",
        limits: str = "default",
        float16: str = NATIVE,
        libraries: Sequence[str] = (),
    ) -> Path:
        """Return the package of `model` (a name above or a kind of `tests.models`).

        It has the library that the other arguments describe, or several by name.
        """
        sizes = SIZES[model]

        def make(output: Path) -> None:
            request = CompileRequest(
                model=self._source(model),
                target=target,
                quant=quant,
                output=output,
                context_length=sizes.context_length,
                prefill_chunk=sizes.prefill_chunk,
                activations=activations,
                limits=limits,
                float16=float16,
                libraries=fitting_forms(
                    libraries,
                    has_float16=RECIPES[quant].has_float16,
                    takes_int8=RECIPES[quant].takes_int8,
                ),
                modalities=None if model in (SEEING, SEEING_LITTLE) else TEXT_ONLY,
                image_tokens=70 if model == SEEING_LITTLE else None,
                drafter=TINY if model == DRAFTED else None,
            )
            # Of `tiny` it is what users get; of the others, where kernels are what varies, and with
            # towers or a drafter for a browser, host code that launches the same kernels with less
            # of LLVM's work.
            is_tiny = model == TINY or (model.startswith(TINY) and target == "cpu")
            is_usual = is_tiny and not libraries and form == USUAL
            compiler = compile_model if is_usual else compile_small
            with nullcontext() if model.startswith(TINY) else without_known_answers():
                compiler(request, Silent())

        form = (activations, limits, float16)
        key = (model, target, quant, *form, *libraries)
        return made_once(self.root / "-".join(key), make)

    def _source(self, model: str) -> str:
        if model == EMBEDDING:
            return model
        return TINY if model.startswith(TINY) else str(self._checkpoint(model))

    def _checkpoint(self, kind: str) -> Path:
        def make(path: Path) -> None:
            weights = models.random_weights(models.ALL[kind])
            if kind == "moe":
                # Two builds may choose either of two experts that score nearly the same.
                weights = routing.decided_by_token(weights)
            models.write_checkpoint(path, models.ALL[kind], weights=weights)

        return made_once(self.root / "checkpoints" / kind, make)

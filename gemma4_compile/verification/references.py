"""transformers in float32 on a package's weights and on its checkpoint's, in one pass over both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.verification.forms import FormTrial
from gemma4_compile.verification.measures import TextMeasures
from gemma4_compile.verification.prompt import Prompt as Text
from gemma4_compile.verification.samples import Trial
from gemma4_compile.verification.subject import Subject
from gemma4_compile.verification.torch_parts import load_forms, load_transformers

if TYPE_CHECKING:  # it needs torch and transformers
    from gemma4_compile.verification.transformer import ReferenceRun

Float32Array = npt.NDArray[np.float32]

PACKAGE, CHECKPOINT = "package", "checkpoint"


@dataclass(frozen=True)
class Transformers:
    """transformers in float32 on weights that `read` reads, of the model that `opened` is of."""

    module: ModuleType
    opened: Subject
    read: RowReader

    def rows(self, trial: Trial) -> Float32Array:
        """Rows of the trial's medium."""
        config = self.opened.checkpoint.config
        text, shapes = self.module.text_config(config), self.opened.shapes
        rows = self.module.medium_rows(config, text, self.read, shapes, trial.medium)
        return np.asarray(rows, np.float32)

    def logits(self, trial: Trial, tokens: Sequence[int], rows: Float32Array) -> Float32Array:
        """Logits after the trial's prompt and after each of the tokens that follow it."""
        assert trial.prompt is not None, "there is room for it"
        prompt = replace(trial.prompt, ids=[*trial.prompt.ids, *tokens])
        places = range(len(trial.prompt) - 1, len(prompt))
        text = self.module.text_config(self.opened.checkpoint.config)
        weights = (self.opened.config.dtype, self.read, self.opened.shapes)
        found: ReferenceRun = self.module.run_transformers(text, *weights, prompt, places, [rows])
        return found.logits


@dataclass(frozen=True)
class References:
    """Results of transformers.

    Attributes
    ----------
    runs : of the text whose layers are compared, by the weights that they have
    forms : logits at the rows of each text by form, by weights, then by text
    stored : the package's weights next to the checkpoint's, at all positions, by text
    """

    runs: Mapping[str, ReferenceRun]
    forms: Mapping[str, Sequence[Float32Array]]
    stored: Mapping[str, TextMeasures]


def run_references(
    opened: Subject, prompt: Text, trials: Sequence[FormTrial], device: str, reporter: Reporter
) -> References:
    """Run the text and the texts by form on both sets of weights."""
    module, forms = load_transformers(), load_forms()
    text = module.text_config(opened.checkpoint.config)
    readers = {CHECKPOINT: opened.read, PACKAGE: opened.stored.read}
    weights = [module.Weights(read, opened.shapes) for read in readers.values()]
    sequences = [
        module.Tokens(prompt.ids, prompt.rows),
        *(module.Tokens(trial.text.ids) for trial in trials),
    ]
    total = len(weights) * forms.layer_bytes(opened.shapes)
    reporter.stage(
        f"running transformers in float32 on {sum(len(one.ids) for one in sequences)} tokens on "
        f"{device}, on the weights of the package and of the checkpoint"
    )
    with reporter.progress("running layers", total) as advance:
        advance(0)  # nothing was done by an earlier run
        dtype = opened.config.dtype
        found = module.stream(text, dtype, weights, sequences, device=device, advance=advance)
    places = [prompt.rows, *(list(trial.rows) for trial in trials)]
    runs, logits = {}, {}
    for name, one, streamed in zip(readers, weights, found, strict=True):
        runs[name], logits[name] = module.with_logits(streamed, places, text, one)
    masked = opened.provenance.build["suppressed_tokens"]
    texts = [trial.text for trial in trials]
    stored = {}
    if texts:
        own = [streamed[1:] for streamed in found]
        (measures,) = forms.compare_forms(text, weights, own, texts, masked, device)
        stored = measures.texts
    return References(runs, logits, stored)

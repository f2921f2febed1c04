"""A checkpoint, opened to run transformers on its weights as recipes store them.

No package is made: transformers runs in float32 on the weights that each recipe would store, next
to the checkpoint's own, all together, so that a layer is read once. It is the recipes alone that
differ: kernels and the dtype of activations take no part.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemma4_compile import __version__
from gemma4_compile.checkpoint.gguf.opening import Tokenizer
from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.same_weights import sample_hash
from gemma4_compile.checkpoint.sources import ModelSource, open_source
from gemma4_compile.checkpoint.suppressed_tokens import suppressed_tokens
from gemma4_compile.compile.compilation import config_digest
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.options.verify import AUTO, DEFAULT_TEXT_TOKENS, TEXTS
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.quantization.recipe import Recipe
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.prompt import read_text
from gemma4_compile.verification.recipe_weights import EXACT, RecipeWeights
from gemma4_compile.verification.texts import GIVEN, FormText, open_reader
from gemma4_compile.verification.torch_parts import choose_device, load_forms, load_transformers

if TYPE_CHECKING:  # they need torch and transformers
    from gemma4_compile.verification.form_measures import FormMeasures
    from gemma4_compile.verification.heads import Weights


@dataclass(frozen=True)
class Subject:
    """A checkpoint, and the texts that recipes are tried on.

    Attributes
    ----------
    texts : names of the texts that ship
    text : a text of the user's besides
    text_tokens : most tokens of a text
    device : of torch, or `auto`
    tokenizer : hub id or directory of the tokenizer, of a model in GGUF
    adapters : hub ids or directories of what is merged into the model first, in order
    """

    model: str
    revision: str | None = None
    texts: tuple[str, ...] = TEXTS
    text: Path | None = None
    text_tokens: int = DEFAULT_TEXT_TOKENS
    device: str = AUTO
    tokenizer: str | None = None
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeRuns:
    """An opened checkpoint.

    Attributes
    ----------
    table : parameters of all its parts
    sample : digest of a sample of all weights
    left_out : names of texts that it cannot read
    """

    source: ModelSource
    table: tuple[Parameter, ...]
    texts: tuple[FormText, ...]
    left_out: tuple[str, ...]
    device: str
    sample: str
    _read: RowReader

    @property
    def config(self) -> Gemma4Config:
        """The model's."""
        return self.source.config

    @property
    def subject(self) -> JsonObject:
        """What is run, of what and with what, as it is in reports: no times, no paths."""
        return {
            "source": {
                **self.source.origin,
                "config": config_digest(self.config),
                "weights": self.sample,
            },
            "versions": {
                "gemma4-compile": __version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                **load_transformers().VERSIONS,
            },
            "device": self.device,
            "texts": {text.name: text.to_json() for text in self.texts},
            "left_out": list(self.left_out),
        }

    def state_bytes(self, sets: int) -> int:
        """Memory of what waits between two layers, of this many sets of weights."""
        text = load_transformers().text_config(self._checkpoint.config)
        lengths = [len(one.ids) for one in self.texts]
        return int(load_forms().state_bytes(text, sets, lengths))

    def measure(self, recipes: Sequence[Recipe], reporter: Reporter) -> list[FormMeasures]:
        """Distances from the checkpoint in float32 of what each recipe stores."""
        transformer, forms = load_transformers(), load_forms()
        weights = self._weights(transformer.Weights, recipes)
        text = transformer.text_config(self._checkpoint.config)
        excluded = suppressed_tokens(self.source.generation_config, self.config.vocab_size)
        tokens = sum(len(one.ids) for one in self.texts)
        states = self.state_bytes(len(weights)) / 2**20
        reporter.stage(
            f"running transformers in float32 on {tokens} tokens in {len(weights)} forms, on "
            f"{self.device}; their states take {states:.0f} MiB"
        )
        total = len(weights) * forms.layer_bytes(weights[0].shapes)
        with reporter.progress("running layers", total) as advance:
            advance(0)  # nothing was done by an earlier run
            runs = transformer.stream(
                text,
                self.config.dtype,
                weights,
                [transformer.Tokens(one.ids) for one in self.texts],
                device=self.device,
                advance=advance,
            )
        reporter.stage("comparing the distributions")
        found: list[FormMeasures] = forms.compare_forms(
            text, weights, runs, self.texts, excluded, self.device
        )
        return found

    @property
    def _checkpoint(self) -> Checkpoint:
        assert self.source.checkpoint is not None, "asked for"
        return self.source.checkpoint

    def _weights(self, kind: Callable[..., Weights], recipes: Sequence[Recipe]) -> list[Weights]:
        """The checkpoint's own, and those that each recipe stores."""
        shapes = {source.name: source.shape for item in self.table for source in item.sources}
        stored = [RecipeWeights(self._read, self.table, recipe) for recipe in recipes]
        return [
            kind(self._read, shapes, lambda name: EXACT),
            *(kind(one.read, shapes, one.version) for one in stored),
        ]


@contextmanager
def open_runs(
    subject: Subject,
    reporter: Reporter,
    check: Callable[[ModelSource, tuple[Parameter, ...]], object],
) -> Iterator[RecipeRuns]:
    """Open a checkpoint and its texts.

    Parameters
    ----------
    check : raises what is wrong with the recipes of a model, before more of it is read than samples

    Raises
    ------
    Gemma4CompileError
        If something is missing, damaged or does not fit.
    """
    load_transformers()
    device = choose_device(subject.device)
    reporter.stage(f"opening {subject.model}")
    tokenizer = Tokenizer(is_wanted=True, given=subject.tokenizer)
    with open_source(
        subject.model,
        subject.revision,
        weights=True,
        tokenizer=tokenizer,
        adapters=subject.adapters,
    ) as source:
        assert source.checkpoint is not None, "asked for"
        if source.config.embedding is not None:
            raise UsageError(
                f"`{subject.model}` makes embeddings of texts, and no tokens whose distributions "
                "could be compared",
                hint="compile a package of each recipe, and compare its vectors: gemma4-compile "
                "... --quant RECIPE --verify",
            )
        table = model_parameters(source.config, COMPONENTS)
        check(source, table)
        texts = _texts(subject, source.checkpoint, source.config)
        matched = match(source.checkpoint.tensors, source.config)
        names = {text.name for text in texts}
        yield RecipeRuns(
            source=source,
            table=table,
            texts=tuple(texts),
            left_out=tuple(name for name in subject.texts if name not in names),
            device=device,
            sample=sample_hash({leaf for one in matched.values() for leaf in one.stored}),
            _read=row_reader(matched),
        )


def _texts(subject: Subject, checkpoint: Checkpoint, config: Gemma4Config) -> list[FormText]:
    """The texts as tokens; UsageError if none of them has two."""
    checkpoint.tokenizer_files()  # names the one that is missing
    room = min(subject.text_tokens, config.max_position_embeddings)
    reader = open_reader(checkpoint.path, config, room)
    texts = list(reader.read(subject.texts))
    if subject.text is not None:
        given = reader.text(GIVEN, read_text(subject.text))
        texts += [] if given is None else [given]
    if not texts:
        raise UsageError(
            "none of the texts can be read with the model's tokenizer and chat template",
            hint="give other --texts, or a --text of your own",
        )
    return texts

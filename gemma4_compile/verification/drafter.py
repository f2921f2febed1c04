"""The drafter of a package next to its float32 reference: weights, drafts, checked tokens.

The reference is `model_spec/drafter/reference.py`, which tests hold against transformers, on the
states, keys and values that transformers gives for the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gemma4_compile import abi
from gemma4_compile.checkpoint.drafter import DrafterSource, match_drafter, open_drafter
from gemma4_compile.checkpoint.match import row_reader
from gemma4_compile.checkpoint.nonfinite import finite_reader
from gemma4_compile.checkpoint.sources import TINY
from gemma4_compile.compile.compilation import drafter_provenance
from gemma4_compile.compile.resolve import package_splits
from gemma4_compile.errors import CheckpointError, UsageError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.drafter import DrafterConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.component import DRAFTER
from gemma4_compile.model_spec.drafter.parameters import STEM
from gemma4_compile.model_spec.drafter.reference import Draft, draft
from gemma4_compile.model_spec.text.scales import embedding_scale
from gemma4_compile.package.artifacts import Build, TensorCache, read_artifact
from gemma4_compile.package.interface import DRAFTER as ENTRY
from gemma4_compile.package.partial_build import NONFINITE
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.targets.spec import INT8
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.build_fields import reads_words
from gemma4_compile.verification.measures import (
    DraftMeasures,
    LayerMeasures,
    LogitMeasures,
    compare_drafts,
    compare_layer,
    compare_logits,
)
from gemma4_compile.verification.media import WeightMeasures, compare_weights
from gemma4_compile.verification.prompt import Prompt
from gemma4_compile.verification.rounds import PackageDraft, Round
from gemma4_compile.verification.stored_weights import StoredWeights
from gemma4_compile.verification.subject import Subject, VerifyRequest, overrides_of
from gemma4_compile.verification.thresholds import (
    draft_kl_bound,
    draft_shortfalls,
    shortfalls,
    thresholds,
)

Float32Array = npt.NDArray[np.float32]
KeysValues = Mapping[AttentionKind, tuple[Float32Array, Float32Array]]


class ReferenceRun(Protocol):
    """transformers' results on one set of weights: see `transformer.ReferenceRun`."""

    @property
    def logits(self) -> Float32Array:
        """(positions, vocab_size)."""

    @property
    def normed(self) -> Float32Array:
        """(positions, hidden_size)."""

    @property
    def keys_values(self) -> KeysValues:
        """Of the last owner of each kind, at all positions of the sequence."""


@contextmanager
def drafter_of(
    request: VerifyRequest, build: Build, target: Gemma4Config
) -> Iterator[DrafterSource | None]:
    """The drafter that a package was made with; None of a package without one.

    Raises
    ------
    UsageError
        If it must be named, or there is none.
    CheckpointError
        If it is another one, or damaged.
    """
    made: Mapping[str, object] | None = build.get(ENTRY)
    if made is None:
        if request.drafter is not None:
            raise UsageError(
                f"--drafter: `{request.package}` has no drafter",
                hint="leave it out, or compile the package with --drafter",
            )
        yield None
        return
    name, revision = _name_of(request, made)
    with open_drafter(name, target, weights=True, revision=revision) as source:
        if source is not None and drafter_provenance(source)["config"] != made["config"]:
            raise CheckpointError(
                f"`{request.package}` was compiled with the drafter of another config.json than "
                f"`{name}`",
                hint="give the drafter that the package was made with to --drafter",
            )
        yield source


def _name_of(request: VerifyRequest, made: Mapping[str, object]) -> tuple[str, str | None]:
    """Name and revision of the drafter: as it is asked for, or as the package was made."""
    if request.drafter is not None and request.drafter != made.get("model"):
        return request.drafter, None
    if made["kind"] == TINY:
        return TINY, None
    if "model" in made:
        return str(made["model"]), str(made["revision"])
    raise UsageError(
        f"`{request.package}` has a drafter, which was read from a directory",
        hint="name that directory with --drafter",
    )


@dataclass(frozen=True)
class DraftSubject:
    """A package's drafter, and the checkpoint it was made from.

    Attributes
    ----------
    opened : the package
    config : the model's, with the drafter's
    stored, given : read rows of the package's weights, and of the checkpoint's
    """

    opened: Subject
    origin: Mapping[str, object]
    config: Gemma4Config
    plan: tuple[StoredParameter, ...]
    stored: RowReader
    given: RowReader

    @classmethod
    def of(cls, request: VerifyRequest, opened: Subject, source: DrafterSource) -> DraftSubject:
        """Open the drafter of an opened package."""
        assert source.checkpoint is not None, "asked for"
        config, build = replace(opened.config, drafter=source.config), opened.provenance.build
        limits = package_splits(opened.provenance)
        recipe = with_overrides(build["recipe"], overrides_of(build))
        plan = storage_plan(DRAFTER.parameters(config), recipe, limits.max_binding_bytes)
        listed = read_artifact(request.package / abi.DRAFTER_CACHE_FILE)
        cache = TensorCache.from_json(listed, abi.DRAFTER_CACHE_FILE)
        given = row_reader(match_drafter(source.checkpoint, config))
        if build.get(NONFINITE) is not None:
            given = finite_reader(given)
        stored = StoredWeights(request.package, cache, plan).read
        return cls(opened, source.origin, config, plan, stored, given)

    @property
    def drafter(self) -> DrafterConfig:
        """The drafter's own config."""
        assert self.config.drafter is not None, "made with it"
        return self.config.drafter

    def weights(self, read: RowReader) -> dict[str, Float32Array]:
        """All weights, by the names that the reference has for them."""
        found = {}
        for stored in self.plan:
            for source in stored.parameter.sources:
                rows = int(np.prod(source.shape[:-1] if len(source.shape) > 1 else source.shape))
                values = np.array(read(source.name, 0, rows), np.float32).reshape(source.shape)
                found[source.name.removeprefix(STEM).removeprefix("model.")] = values
        return found


@dataclass(frozen=True)
class DraftComparison:
    """Drafts, and the model's logits and states of several tokens, on one set of weights.

    Attributes
    ----------
    drafts : None where the package's chunk or context has no room for any
    logits, states : of `verify_tokens`
    is_whole : the reference has the checkpoint's weights
    """

    drafts: DraftMeasures | None
    logits: LogitMeasures
    states: LayerMeasures
    bounds: Thresholds
    is_whole: bool

    @property
    def failures(self) -> Iterator[str]:
        """Measures beyond their bounds, as text; a NaN is."""
        if self.drafts is not None:
            for text in draft_shortfalls(self.bounds, self.drafts, whole=self.is_whole):
                yield f"drafts: {text}"
        for text in shortfalls(self.bounds, self.logits, [self.states]):
            yield f"checked tokens: {text.replace('after layer 0', 'of the states')}"


@dataclass(frozen=True)
class DrafterReport:
    """All that is known of a package's drafter."""

    source: Mapping[str, object]
    weights: WeightMeasures
    rounds: int
    arithmetic: DraftComparison
    whole: DraftComparison

    @property
    def failures(self) -> list[str]:
        """The failures, as text."""
        found = []
        if not self.weights.error <= self.weights.bound:
            found.append(
                f"drafter: stored rows of `{self.weights.tensor.removeprefix(STEM)}` differ from "
                f"the checkpoint's by {self.weights.error:.3g}, at most {self.weights.bound:.3g} "
                "is allowed"
            )
        found += [f"drafter, arithmetic: {text}" for text in self.arithmetic.failures]
        return found + [f"drafter, against the checkpoint: {text}" for text in self.whole.failures]

    def to_json(self) -> JsonObject:
        """As it is in the report."""
        runs = (("arithmetic", self.arithmetic), ("whole", self.whole))
        return {
            "source": dict(self.source),
            "weights": asdict(self.weights),
            "rounds": self.rounds,
            **{
                name: {
                    "guesses": None if one.drafts is None else asdict(one.drafts),
                    "kl_bound": draft_kl_bound(one.bounds, whole=one.is_whole),
                    "logits": asdict(one.logits),
                    "states": asdict(one.states),
                    "thresholds": asdict(one.bounds),
                }
                for name, one in runs
            },
        }


def compare_drafter(
    subject: DraftSubject,
    text: Prompt,
    rounds: Sequence[Round],
    references: Mapping[str, ReferenceRun],
) -> DrafterReport:
    """Compare a package's drafter with the reference, and its `verify_tokens` with transformers.

    Parameters
    ----------
    rounds : what the package returned
    references : by the weights that they have, `package` and `checkpoint`
    """
    weights = compare_weights(subject.plan, subject.stored, subject.given)

    def compare(name: str) -> DraftComparison:
        is_whole, run = name == "checkpoint", references[name]
        own = subject.weights(subject.given if is_whole else subject.stored)
        of_model = subject.opened.read if is_whole else subject.opened.stored.read
        reference = _Reference(subject, own, of_model, text, run)
        return _compared(reference, rounds, is_whole=is_whole)

    return DrafterReport(
        subject.origin, weights, len(rounds), compare("package"), compare("checkpoint")
    )


@dataclass(frozen=True)
class _Reference:
    """The drafter in float32 on one set of weights, and transformers' run of the model on it."""

    subject: DraftSubject
    weights: Mapping[str, Float32Array]
    of_model: RowReader
    text: Prompt
    run: ReferenceRun

    def row(self, position: int) -> int:
        """The place of a position in the results of the run."""
        return list(self.text.rows).index(position)

    def embedding(self, token_id: int) -> Float32Array:
        row = self.of_model("embed_tokens.weight", token_id, token_id + 1)[0]
        return np.asarray(row * np.float32(embedding_scale(self.subject.config)), np.float32)

    def drafts(self, one: Round) -> Iterator[tuple[PackageDraft, Draft]]:
        """The package's drafts of a round with the reference's, which begin with its tokens."""
        before = {
            kind: (keys[: one.position], values[: one.position])
            for kind, (keys, values) in self.run.keys_values.items()
        }
        token_id, hidden = self.text.ids[one.position], None
        for found in one.drafts:
            if hidden is None:
                hidden = self.run.normed[self.row(one.position - 1)]
            drafter = self.subject.drafter
            expected = draft(drafter, self.weights, self.embedding(token_id), hidden, before)
            yield found, expected
            token_id, hidden = found.token, expected.hidden


def _compared(reference: _Reference, rounds: Sequence[Round], *, is_whole: bool) -> DraftComparison:
    opened = reference.subject.opened
    build = opened.provenance.build
    run, ids = reference.run, reference.text.ids
    pairs = [pair for one in rounds for pair in reference.drafts(one)]
    positions = [one.position + row for one in rounds for row in range(len(one.logits))]
    rows = [reference.row(position) for position in positions]
    following = [ids[place + 1] if place + 1 < len(ids) else None for place in positions]
    return DraftComparison(
        compare_drafts(pairs) if pairs else None,
        compare_logits(
            np.concatenate([one.logits for one in rounds]),
            run.logits[rows],
            following,
            build["suppressed_tokens"],
        ),
        compare_layer(np.concatenate([one.states for one in rounds]), run.normed[rows]),
        thresholds(
            build["recipe"],
            int8=build["activations"] == INT8,
            whole=is_whole,
            words=reads_words(build),
            stepped=opened.config.rounds_activations,
        ),
        is_whole,
    )

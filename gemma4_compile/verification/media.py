"""Pictures and sounds of a package next to transformers: weights, rows, tokens after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.inputs import Picture
from gemma4_compile.model_spec.audio.component import AUDIO
from gemma4_compile.model_spec.config.audio import AudioConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import VisionConfig
from gemma4_compile.model_spec.parameters import Source
from gemma4_compile.model_spec.vision.component import VISION
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.quantization.recipe import StoredParameter
from gemma4_compile.targets.spec import INT8
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.build_fields import reads_words
from gemma4_compile.verification.measures import (
    LogitMeasures,
    RowMeasures,
    compare_logits,
    compare_rows,
)
from gemma4_compile.verification.runners import Outcome
from gemma4_compile.verification.samples import Trial
from gemma4_compile.verification.subject import Subject
from gemma4_compile.verification.thresholds import (
    activation_dtype,
    rows_bound,
    shortfalls,
    thresholds,
)

Float32Array = npt.NDArray[np.float32]

ENCODERS = {"image": VISION, "audio": AUDIO}
NAMES = {"image": "picture", "audio": "sound"}
_BLOCK_BYTES = 64 << 20  # of weights that are compared at a time


class Reference(Protocol):
    """transformers on one set of weights."""

    def rows(self, trial: Trial) -> Float32Array:
        """Rows of the trial's medium."""

    def logits(self, trial: Trial, tokens: Sequence[int], rows: Float32Array) -> Float32Array:
        """Logits after the trial's prompt and after each of the tokens that follow it."""


@dataclass(frozen=True)
class WeightMeasures:
    """Stored weights of a tower next to the checkpoint's.

    Attributes
    ----------
    tensor : the one that is nearest to its bound, or beyond it
    error, bound : of its rows, relative to their lengths
    """

    tensor: str
    error: float
    bound: float


@dataclass(frozen=True)
class MediumComparison:
    """A medium next to transformers on one set of weights.

    Attributes
    ----------
    rows_bound : of the rows' relative error
    logits : after the medium and after each token; None where the context has no room for it
    """

    rows: RowMeasures
    rows_bound: float
    logits: LogitMeasures | None
    bounds: Thresholds

    @property
    def failures(self) -> Iterator[str]:
        """Measures beyond their bounds, as text; a NaN is."""
        found = self.rows.relative_error
        if not found <= self.rows_bound:
            yield (
                f"relative error of the tower's rows is {found:.3g}, at most "
                f"{self.rows_bound:.3g} is allowed"
            )
        if self.logits is not None:
            for text in shortfalls(self.bounds, self.logits, ()):
                yield f"tokens after it: {text}"


@dataclass(frozen=True)
class MediumReport:
    """All that is known of a package's pictures, or of its sounds."""

    trial: Trial
    weights: WeightMeasures
    arithmetic: MediumComparison
    whole: MediumComparison

    @property
    def failures(self) -> list[str]:
        """The failures, as text."""
        name = NAMES[self.trial.modality]
        found = []
        if not self.weights.error <= self.weights.bound:
            found.append(
                f"{name}: stored rows of `{self.weights.tensor}` differ from the checkpoint's by "
                f"{self.weights.error:.3g}, at most {self.weights.bound:.3g} is allowed"
            )
        found += [f"{name}, arithmetic: {text}" for text in self.arithmetic.failures]
        return found + [f"{name}, against the checkpoint: {text}" for text in self.whole.failures]

    def to_json(self) -> JsonObject:
        """As it is in the report."""
        trial, medium = self.trial, self.trial.medium
        shape = {"rows": medium.rows, "sha256": medium.digest.hex()}
        if isinstance(medium, Picture):
            across, down = (medium.positions.max(axis=0) + 1).tolist()
            shape |= {"blocks_across": across, "blocks_down": down}
        else:
            shape |= {"samples": len(medium.samples)}
        return {
            "shown": shape,
            "prompt": None if trial.prompt is None else len(trial.prompt),
            "decoded": trial.steps,
            "weights": asdict(self.weights),
            **{
                name: {
                    "rows": asdict(one.rows),
                    "rows_bound": one.rows_bound,
                    "logits": None if one.logits is None else asdict(one.logits),
                    "thresholds": asdict(one.bounds),
                }
                for name, one in (("arithmetic", self.arithmetic), ("whole", self.whole))
            },
        }


def compare_media(
    opened: Subject,
    trials: Sequence[Trial],
    found: Sequence[Sequence[Outcome]],
    references: Mapping[str, Reference],
) -> list[MediumReport]:
    """Compare what a package makes of media with what transformers makes of them.

    Parameters
    ----------
    found : results of the jobs of each trial
    references : by the weights that they have, `package` and `checkpoint`
    """
    return [
        _compared(opened, trial, outcomes, references)
        for trial, outcomes in zip(trials, found, strict=True)
    ]


def _compared(
    opened: Subject,
    trial: Trial,
    outcomes: Sequence[Outcome],
    references: Mapping[str, Reference],
) -> MediumReport:
    build = opened.provenance.build
    int8 = build["activations"] == INT8
    plan = list(stored_parameters(opened, trial.modality))
    schemes = [stored.scheme for stored in plan if len(stored.parameter.shape) > 1]
    rows, after = outcomes[0].rows, outcomes[1:]
    assert rows is not None, "the first job of a trial"
    tokens = [outcome.token for outcome in after]
    words, blocks = reads_words(build), tower_blocks(opened.config, trial)
    dtype = activation_dtype(build["recipe"], words=words)

    def compare(name: str) -> MediumComparison:
        is_whole, reference = name == "checkpoint", references[name]
        expected, logits = reference.rows(trial), None
        if rows.shape != expected.shape:
            raise ArtifactError(
                f"the library makes rows of shape {rows.shape} of a {NAMES[trial.modality]}; "
                f"transformers makes {expected.shape}",
                hint="compile the package again",
            )
        if after:
            right = reference.logits(trial, tokens[:-1], expected)
            given = np.stack([outcome.logits for outcome in after])
            following = [*tokens[:-1], None]
            logits = compare_logits(given, right, following, build["suppressed_tokens"])
        weighed = schemes if is_whole else ()
        return MediumComparison(
            compare_rows(rows, expected),
            rows_bound(dtype, blocks, weighed, int8=int8),
            logits,
            thresholds(build["recipe"], int8=int8, whole=is_whole, words=words),
        )

    weights = compare_weights(plan, opened.stored.read, opened.read)
    return MediumReport(trial, weights, compare("package"), compare("checkpoint"))


def stored_parameters(opened: Subject, modality: str) -> Iterator[StoredParameter]:
    """The part of a package's plan that belongs to a modality."""
    names = {parameter.name for parameter in ENCODERS[modality].parameters(opened.config)}
    return (stored for stored in opened.plan if stored.parameter.name in names)


def tower_blocks(config: Gemma4Config, trial: Trial) -> int:
    """Blocks of what turns a medium into rows, one after the other: see thresholds.py."""
    if trial.modality == "image":
        vision = config.vision
        return 2 * vision.num_hidden_layers + 2 if isinstance(vision, VisionConfig) else 3
    audio = config.audio
    return 4 * audio.num_hidden_layers + 3 if isinstance(audio, AudioConfig) else 1


def compare_weights(
    plan: Sequence[StoredParameter], stored: RowReader, given: RowReader
) -> WeightMeasures:
    """Hold stored weights against the checkpoint's, row by row.

    Whatever a tower makes of one picture, a damaged weight of it is found here.
    """
    worst, largest = WeightMeasures("", 0.0, 0.0), -1.0
    for one in plan:
        relative, smallest = one.scheme.row_bound
        for source in one.parameter.sources:
            for begin, end in _blocks(source):
                right = _rows(given(source.name, begin, end), source)
                length = np.linalg.norm(right, axis=-1)
                allowed = relative * length + smallest * right.shape[-1] ** 0.5
                apart = np.linalg.norm(
                    _rows(stored(source.name, begin, end), source) - right, axis=-1
                )
                share = np.where(apart == 0, 0.0, np.inf)
                np.divide(apart, allowed, out=share, where=np.isfinite(apart) & (allowed > 0))
                row = int(share.argmax())
                if share[row] > largest:
                    largest, scale = float(share[row]), float(length[row]) or 1.0
                    values = float(apart[row]) / scale, float(allowed[row]) / scale
                    worst = WeightMeasures(source.name, *values)
    return worst


def _blocks(source: Source) -> Iterator[tuple[int, int]]:
    """Rows of a source in blocks; all elements of a vector or a scalar."""
    rows = int(np.prod(source.shape[:-1])) if len(source.shape) > 1 else int(np.prod(source.shape))
    size = rows
    if len(source.shape) > 1:
        size = max(1, _BLOCK_BYTES // (8 * source.shape[-1]))
    return ((begin, min(begin + size, rows)) for begin in range(0, rows, size))


def _rows(values: Float32Array, source: Source) -> npt.NDArray[np.float64]:
    """Values as rows; those of a vector are one."""
    cols = source.shape[-1] if len(source.shape) > 1 else values.size
    return values.astype(np.float64).reshape(-1, cols)

"""Texts by form on a package: how far its next tokens are from transformers', form by form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.measures import LogitMeasures, TextMeasures, compare_logits
from gemma4_compile.verification.runners import Job, Outcome, Step
from gemma4_compile.verification.texts import FormText

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FormTrial:
    """A text, and how much of it is a prompt: the package decodes the rest."""

    text: FormText
    length: int

    @classmethod
    def of(cls, text: FormText, steps: int) -> FormTrial:
        """Decode the last `steps` tokens of a text, fewer where it is short."""
        return cls(text, len(text.ids) - min(steps, max(1, len(text.ids) // 4)))

    @property
    def rows(self) -> range:
        """Positions whose logits are compared."""
        return range(self.length - 1, len(self.text.ids))

    def jobs(self) -> list[Job]:
        """The steps whose results belong to `rows`."""
        ids = self.text.ids
        return [
            Step(ids[: self.length], clear=True),
            *(Step((token,), chunk=0) for token in ids[self.length :]),
        ]


@dataclass(frozen=True)
class FormReport:
    """A text on a package.

    Attributes
    ----------
    stored : the package's weights next to the checkpoint's in float32, at every position
    arithmetic, whole : the package next to transformers on its own weights, on the checkpoint's,
        at the decoded positions
    kl_bound : largest mean divergence of `arithmetic`; what a recipe costs has no bound here
    """

    trial: FormTrial
    stored: TextMeasures
    arithmetic: LogitMeasures
    whole: LogitMeasures
    kl_bound: float

    @property
    def failures(self) -> Iterator[str]:
        """Measures beyond their bounds, as text."""
        if not self.arithmetic.kl_mean <= self.kl_bound:
            yield (
                f"arithmetic: {self.trial.text.name}: mean KL divergence is "
                f"{self.arithmetic.kl_mean:.3g}, at most {self.kl_bound:g} is allowed"
            )

    def to_json(self) -> JsonObject:
        """As it is in the report."""
        return {
            **self.trial.text.to_json(),
            "decoded": len(self.trial.rows) - 1,
            "stored": asdict(self.stored),
            "arithmetic": asdict(self.arithmetic),
            "whole": asdict(self.whole),
            "kl_bound": self.kl_bound,
        }


def compare_trials(
    trials: Sequence[FormTrial],
    outcomes: Sequence[Sequence[Outcome]],
    arithmetic: Sequence[Float32Array],
    whole: Sequence[Float32Array],
    stored: Mapping[str, TextMeasures],
    bounds: Thresholds,
    masked: Sequence[int],
) -> tuple[FormReport, ...]:
    """Compare what a package gave for texts.

    Parameters
    ----------
    outcomes : of each trial's jobs
    arithmetic, whole : transformers' logits at each trial's rows
    bounds : of the package's arithmetic
    masked : ids of tokens that the package masks
    """
    reports = []
    for index, trial in enumerate(trials):
        found = np.stack([outcome.logits for outcome in outcomes[index]])
        following = [trial.text.following[row] for row in trial.rows]
        own, right = (
            compare_logits(found, logits[index], following, masked)
            for logits in (arithmetic, whole)
        )
        name = trial.text.name
        reports.append(FormReport(trial, stored[name], own, right, bounds.kl_mean))
    return tuple(reports)

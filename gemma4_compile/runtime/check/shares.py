"""Measured speeds beside the least that they ask of a device: shares of its peaks."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gemma4_compile.package.fields import COMPILE_AGAIN
from gemma4_compile.package.step_work import StepWork, step_work
from gemma4_compile.runtime.check.peaks import Peaks, peaks_of
from gemma4_compile.runtime.engine.engine import Engine


@dataclass(frozen=True)
class Yardstick:
    """What speeds of a package on a device are held against.

    Attributes
    ----------
    work : of the package's steps; None where the package does not tell
    peaks : of the device
    prefill_chunk : tokens that one forward takes, at most
    experts_on_host : so that a token does not read them from the device's memory
    """

    work: StepWork | None
    peaks: Peaks
    prefill_chunk: int
    experts_on_host: bool = False

    @classmethod
    def of(cls, engine: Engine) -> Yardstick:
        """That of a package and its device; ArtifactError for damaged metadata."""
        metadata = json.loads(engine.model.library.metadata())
        return cls(
            step_work(metadata),
            peaks_of(engine.device),
            engine.prefill_chunk,
            bool(engine.experts.on_host),
        )

    def of_bandwidth(self, position: float, steps_per_s: float) -> float | None:
        """Share of the memory's bandwidth that decoding takes at least.

        Parameters
        ----------
        position : tokens before the one that is decoded, on average
        steps_per_s : forwards; with guesses that come true fewer than tokens
        """
        most = self.peaks.bytes_per_s
        if self.work is None or most is None or self.experts_on_host:
            return None
        return self.work.token_bytes(round(position)) * steps_per_s / most

    def of_arithmetic(self, tokens: int, seconds: float) -> float | None:
        """Share of float32's peak that a prompt of so many tokens takes at least."""
        most = self.peaks.operations_per_s
        if self.work is None or most is None:
            return None
        return self.work.prompt_operations(tokens, self.prefill_chunk) / seconds / most

    def describe(self) -> str:
        """What the shares are of, or why there are none."""
        known = self.peaks.bytes_per_s is not None or self.peaks.operations_per_s is not None
        if known and self.work is None:
            return f"no shares: the package does not tell what a step does; {COMPILE_AGAIN}"
        if known and self.experts_on_host:
            return f"{self.peaks.source}; experts come over the bus, from the host's memory"
        return self.peaks.source

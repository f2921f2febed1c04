"""What a tuning has timed so far: kept for a day, so that one that was ended goes on from there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time

import numpy as np

from gemma4_compile.runtime.check.tune_run import Sizes, Timing
from gemma4_compile.runtime.device.metal_launcher import LAUNCHES, SWITCH
from gemma4_compile.runtime.package.notes import forget_note, read_note, write_note
from gemma4_compile.runtime.sampling.sampling import Float32Array

_NOTES = "tuning-trials"
_MOST_NOTES = 8  # libraries of a package that one machine runs: those of before are the older ones
_MOST_BYTES = 1 << 26  # logits of eight tokens of 262,144 are 8 MiB
_HOURS = 24


@dataclasses.dataclass(frozen=True)
class Trials:
    """Trials of one package on these devices.

    Attributes
    ----------
    tuning : a name of the choice that is being made, and of the files that it is made of
    sizes : that libraries are loaded with
    """

    tuning: str
    sizes: Sizes

    def find(self, library: str) -> tuple[Timing, Float32Array] | None:
        """A library's result of the last day, with its logits; None where there is none."""
        found = read_note(_NOTES, self._name(library), _MOST_BYTES)
        if found is None:
            return None
        head, _, body = found.partition(b"\n")
        try:
            values = json.loads(head)
            written, shape = float(values["written_s"]), tuple(map(int, values["shape"]))
            timing = Timing(**values["timing"])
            logits = np.frombuffer(body, "<f4").reshape(shape)
        except (ValueError, TypeError, KeyError):
            return None
        age_s = time.time() - written
        if not 0 <= age_s < _HOURS * 3600 or math.prod(shape) * 4 != len(body):
            return None
        return timing, logits

    def keep(self, library: str, timing: Timing, logits: Float32Array) -> None:
        """Keep the result of a library that computes right."""
        values = {"written_s": time.time(), "shape": logits.shape}
        head = json.dumps({**values, "timing": dataclasses.asdict(timing)}).encode()
        content = head + b"\n" + logits.astype("<f4").tobytes()
        write_note(_NOTES, self._name(library), content, _MOST_NOTES)

    def forget(self, library: str) -> None:
        """Forget a result: the next tuning measures again."""
        forget_note(_NOTES, self._name(library))

    def _name(self, library: str) -> str:
        driven = [os.environ.get(name) for name in (SWITCH, LAUNCHES)]
        text = json.dumps([self.tuning, library, self.sizes.to_json(), driven])
        return hashlib.sha256(text.encode()).hexdigest()

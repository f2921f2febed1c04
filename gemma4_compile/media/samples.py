"""What every sound is held to, whichever library decodes it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import MediaError
from gemma4_compile.media.limits import (
    MAX_CHANNELS,
    MAX_RATE_HZ,
    MAX_SAMPLES,
    MIN_RATE_HZ,
    SAMPLE_RATE_HZ,
    SLACK_S,
)

Samples = npt.NDArray[np.float32]
DAMAGED = "save it again from the program that made it"
LIMIT_S = MAX_SAMPLES / SAMPLE_RATE_HZ
_LOUDEST = 16.0  # float samples beyond are no sound between -1 and 1, but of another scale


def check_form(rate: int, channels: int) -> None:
    """MediaError for a rate or a number of channels that is not read."""
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise MediaError(
            f"the sound has {rate} samples a second; expected {MIN_RATE_HZ} to {MAX_RATE_HZ}",
            hint=DAMAGED,
        )
    if channels > MAX_CHANNELS:
        raise MediaError(
            f"the sound has {channels} channels; expected at most {MAX_CHANNELS}",
            hint="mix it down to one",
        )


def most_samples(rate: int) -> int:
    """Samples of a channel that a sound may have, with what an encoder adds."""
    return int((LIMIT_S + SLACK_S) * rate)


def too_long(found: str) -> MediaError:
    """The error of a sound that lasts longer."""
    return MediaError(
        f"the sound lasts {found}; expected at most {LIMIT_S:g} s",
        hint=f"cut it to {LIMIT_S:g} s, or send it in several parts",
    )


def checked(samples: Samples) -> Samples:
    """The samples; MediaError for none, no numbers among them, and another scale."""
    if not len(samples):
        raise MediaError("the sound has no samples", hint=DAMAGED)
    loudest = float(np.abs(samples).max())
    if not loudest <= _LOUDEST:  # NaN is not, either
        raise MediaError(
            f"the sound has samples of magnitude {loudest:g}; expected -1 to 1",
            hint="save it with 16-bit samples",
        )
    return samples

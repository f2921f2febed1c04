"""Ranges of sampling parameters: one place for checkpoints, packages, requests and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GREEDY_BELOW = 1e-5
"""A temperature below this is 0: a float32 of its reciprocal would overflow."""

LEAST_TOP_P = 1e-7
"""Value that top_p 0 is taken as: the most probable token alone. The web client refuses 0."""

API_MAX_TEMPERATURE = 2.0
"""OpenAI's API ends here; packages and options may go beyond."""


@dataclass(frozen=True)
class SamplingRange:
    """The values of one parameter.

    Attributes
    ----------
    lowest, highest : both are values themselves
    neutral : changes nothing; its type is the parameter's
    """

    lowest: float
    highest: float
    neutral: float | int

    def describe(self) -> str:
        """Return the range in words."""
        kind = "an integer" if isinstance(self.neutral, int) else "a number"
        return f"{kind} from {self.lowest:g} to {self.highest:g}"


SAMPLING_RANGES: Mapping[str, SamplingRange] = MappingProxyType(
    {
        "temperature": SamplingRange(0.0, 100.0, 1.0),
        "top_p": SamplingRange(0.0, 1.0, 1.0),
        "top_k": SamplingRange(0, 1 << 22, 0),
        "min_p": SamplingRange(0.0, 1.0, 0.0),
        "repetition_penalty": SamplingRange(1e-3, 1e3, 1.0),
        "frequency_penalty": SamplingRange(-2.0, 2.0, 0.0),
        "presence_penalty": SamplingRange(-2.0, 2.0, 0.0),
    }
)


class SamplingValueError(ValueError):
    """A value that the parameter cannot have; the message names what was expected and found."""


def read_sampling(name: str, value: object, highest: float | None = None) -> float | int:
    """Return a parameter's value in its own type, a tiny temperature as 0 and top_p never as 0.

    Parameters
    ----------
    value : whatever JSON or a command line holds
    highest : a bound below the parameter's own

    Raises
    ------
    SamplingValueError
        If it is no number of the range.
    """
    allowed = SAMPLING_RANGES[name]
    if highest is not None:
        allowed = SamplingRange(allowed.lowest, min(highest, allowed.highest), allowed.neutral)
    whole = isinstance(allowed.neutral, int)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not allowed.lowest <= value <= allowed.highest  # NaN is in no range
        or (whole and value != int(value))
    ):
        raise SamplingValueError(f"expected {allowed.describe()}, found {_shown(value)}")
    number = type(allowed.neutral)(value)
    if name == "temperature" and number < GREEDY_BELOW:
        return 0.0
    return max(number, LEAST_TOP_P) if name == "top_p" else number


def _shown(value: object) -> str:
    """A value for a message; an integer may have more digits than Python writes."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:40] if isinstance(value, (str, int, float)) else type(value).__name__

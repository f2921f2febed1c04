"""Decoders of JSON; of long texts one that lets other threads run."""

from __future__ import annotations

import json
from collections.abc import Callable

SMALL_BYTES = 1 << 16
"""Of a text that is decoded at once: a millisecond or so."""


def _as_it_is(pairs: dict[str, object]) -> dict[str, object]:
    return pairs


def _integer(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


def make_decoder(length: int, constant: Callable[[str], object] | None = None) -> json.JSONDecoder:
    """A decoder of a text of so many bytes.

    Between two functions of Python's own other threads run, within the parser they do not.

    Parameters
    ----------
    constant : what `NaN` and the infinities are, by default what Python has
    """
    if length <= SMALL_BYTES:
        return json.JSONDecoder(parse_constant=constant)
    return json.JSONDecoder(
        object_hook=_as_it_is,
        parse_int=_integer,
        parse_float=_number,
        parse_constant=constant,
    )

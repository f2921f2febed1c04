"""Schemes whose integers a text chooses: 4 bits in groups, with a scale or a minimum besides."""

from __future__ import annotations

from gemma4_compile.operators.packings import NIBBLES
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.minima import MinimaScheme
from gemma4_compile.quantization.scheme import Scheme

CalibratedScheme = GroupScheme | MinimaScheme


def calibrated(scheme: Scheme) -> CalibratedScheme | None:
    """The scheme, where a text can choose its integers."""
    if isinstance(scheme, MinimaScheme):
        return scheme
    if isinstance(scheme, GroupScheme) and scheme.packing == NIBBLES:
        return scheme
    return None

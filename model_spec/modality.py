"""Modalities: inputs that a package takes besides text."""

from __future__ import annotations

from enum import Enum


class Modality(str, Enum):
    """One kind of input of a package; text is always one."""

    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"


TEXT_ONLY = frozenset({Modality.TEXT})
ALL_MODALITIES = frozenset(Modality)

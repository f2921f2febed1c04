"""Modalities as the spec has them and as the option --modalities has them."""

from __future__ import annotations

from gemma4_compile.model_spec.modality import ALL_MODALITIES, TEXT_ONLY, Modality
from gemma4_compile.options import package as options


def test_the_option_has_the_same_names() -> None:
    assert tuple(modality.value for modality in Modality) == options.MODALITIES


def test_text_alone_and_all_of_them() -> None:
    assert frozenset({Modality.TEXT}) == TEXT_ONLY
    assert frozenset(Modality) == ALL_MODALITIES

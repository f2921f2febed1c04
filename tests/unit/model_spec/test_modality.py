"""--modalities as the option has it and as the spec has it."""

from __future__ import annotations

import pytest

from gemma4_compile import options
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.modality import ALL_MODALITIES, TEXT_ONLY, Modality
from gemma4_compile.request import modalities_of


def test_the_option_has_the_same_names() -> None:
    assert tuple(modality.value for modality in Modality) == options.MODALITIES
    assert modalities_of(options.make_parser().get_default("modalities")) == TEXT_ONLY


def test_text_is_always_there_and_all_is_left_to_the_checkpoint() -> None:
    assert modalities_of("image") == frozenset({Modality.TEXT, Modality.IMAGE})
    assert modalities_of("audio, image,audio") == ALL_MODALITIES
    assert modalities_of("all") is None


@pytest.mark.parametrize("text", ["", "video", "text,,image", "image,all", "Image"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="unknown modality"):
        modalities_of(text)

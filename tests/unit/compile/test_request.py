"""A request to compile: the defaults of the command line, and the values of --modalities."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gemma4_compile.compile.request import AUTO, CompileRequest, image_tokens, modalities_of
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import ALL_MODALITIES, TEXT_ONLY, Modality
from gemma4_compile.options import compile as options

REQUEST = CompileRequest("tiny", "cpu", "f32", Path("out"))


def test_what_is_not_asked_for_is_as_on_the_command_line() -> None:
    default = options.make_parser().get_default
    same = ("prefill_chunk", "only", "revision", "force", "dump_ir")
    for name in (*same, "allow_nonfinite"):
        assert getattr(REQUEST, name) == default(name), name
    # Asked for, they are of one library; else a package for browsers has all that there are.
    assert default("limits") is None
    assert default("activations") is None
    assert REQUEST.context_length == default("context")
    assert REQUEST.modalities == modalities_of(default("modalities")) == TEXT_ONLY
    assert REQUEST.image_tokens == default("image_tokens")
    assert REQUEST.image_shape == default("image_shape")
    assert REQUEST.overrides == ()
    assert not REQUEST.probe, "nobody asks for it there"


def test_activations_are_left_to_the_target() -> None:
    assert AUTO == "auto"
    assert REQUEST.activations == AUTO


def test_a_request_stays_as_it_was_made() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        REQUEST.force = True  # type: ignore[misc]


def test_text_is_always_there_and_all_is_left_to_the_checkpoint() -> None:
    assert modalities_of("image") == frozenset({Modality.TEXT, Modality.IMAGE})
    assert modalities_of("audio, image,audio") == ALL_MODALITIES
    assert modalities_of("all") is None


@pytest.mark.parametrize("text", ["", "video", "text,,image", "image,all", "Image"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="unknown modality"):
        modalities_of(text)


def test_pictures_have_a_budget_of_the_processor() -> None:
    sees = Gemma4Config.from_preset("gemma-4-E2B-it", ALL_MODALITIES)
    assert image_tokens(REQUEST, sees) == 280
    assert image_tokens(dataclasses.replace(REQUEST, image_tokens=1120), sees) == 1120
    with pytest.raises(UsageError, match="expected one of 70, 140, 280, 560, 1120, found 300"):
        image_tokens(dataclasses.replace(REQUEST, image_tokens=300), sees)
    with pytest.raises(UsageError, match="unknown image shape `round`"):
        image_tokens(dataclasses.replace(REQUEST, image_shape="round"), sees)


def test_a_package_of_text_alone_has_no_pictures_to_budget() -> None:
    blind = Gemma4Config.from_preset("gemma-4-E2B-it")
    assert image_tokens(REQUEST, blind) == 280
    for changes in ({"image_tokens": 560}, {"image_shape": "square"}):
        with pytest.raises(UsageError, match=r"--image-.*: this package takes no pictures"):
            image_tokens(dataclasses.replace(REQUEST, **changes), blind)

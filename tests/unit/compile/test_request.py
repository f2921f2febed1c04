"""A request to compile: the defaults of the command line, and the values of --modalities."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gemma4_compile.compile.request import (
    AUTO,
    CompileRequest,
    compile_request,
    modalities_of,
)
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.modality import ALL_MODALITIES, Modality
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.options.package import parse_modalities
from gemma4_compile.targets.libraries import LIBRARIES

REQUEST = CompileRequest("tiny", "cpu", "f32", Path("out"))


def test_what_is_not_asked_for_is_as_on_the_command_line() -> None:
    given = ["tiny", "--target", "cpu", "--quant", "f32", "-o", "out"]
    assert compile_request(COMMAND.parse([*given, "--limits", "default"])) == REQUEST
    # Without limits, a package has all libraries that there are for its target.
    whole = dataclasses.replace(REQUEST, libraries=(LIBRARIES["cpu"],))
    assert compile_request(COMMAND.parse(given)) == whole
    assert not REQUEST.probe, "nobody asks for it there"


def test_activations_are_left_to_the_target() -> None:
    assert AUTO == "auto"
    assert REQUEST.activations == AUTO


def test_a_request_stays_as_it_was_made() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        REQUEST.force = True  # type: ignore[misc]


def test_text_is_always_there_and_all_is_left_to_the_checkpoint() -> None:
    assert modalities_of(parse_modalities("image")) == frozenset({Modality.TEXT, Modality.IMAGE})
    assert modalities_of(parse_modalities("audio, image,audio")) == ALL_MODALITIES
    assert modalities_of(parse_modalities("all")) is None


@pytest.mark.parametrize("text", ["", "video", "text,,image", "image,all", "Image"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="unknown modality"):
        parse_modalities(text)

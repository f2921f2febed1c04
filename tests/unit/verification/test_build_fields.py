"""Provenance that somebody wrote by hand: each field with values that no compilation writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemma4_compile.checkpoint.json_text import parse_object
from gemma4_compile.errors import ArtifactError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.package.artifacts import ChatConfig
from gemma4_compile.package.media import settings_of
from gemma4_compile.tiny.checkpoint import shipped_file
from gemma4_compile.verification.build_fields import check_build, check_fits

CONFIG = Gemma4Config.from_dict(
    parse_object(shipped_file("config.json")), modalities=list(Modality)
)
TEXT = Gemma4Config.from_dict(parse_object(shipped_file("config.json")))
CHAT = ChatConfig("gemma4", "f32", CONFIG.vocab_size, 1024, 512, (), {})
BUILD: dict[str, Any] = {
    "source": {"kind": "tiny", "config": "sha256:0"},
    "recipe": "f32",
    "overrides": [["embed_tokens", "q8f16_1"]],
    "target": "cpu",
    "limits": "default",
    "activations": "float",
    "context_length": 1024,
    "prefill_chunk": 512,
    "modalities": ["audio", "image", "text"],
    "media": settings_of(CONFIG, 280).to_json(),
    "suppressed_tokens": [3],
    "nonfinite_weights": None,
}
HUGE = 10**30
ODD: tuple[Any, ...] = (
    *(None, True, -1, 1.5, HUGE, "", "x", "\N{COMBINING ACUTE ACCENT}", [], {}, [[]], [None]),
    *([HUGE], [-1], [True], [{}], [["*", {}]], [["*", "none"]], [[1, "f32"]], {"config": []}),
    *(["image"], ["text", "text"], ["text", "smell"], {"x": {"x": {}}}, {"image": {}}),
)
FREE: dict[str, tuple[object, ...]] = {  # what a compilation may write there, too
    "overrides": ([],),
    "suppressed_tokens": ([],),
    "nonfinite_weights": (None, {}, {"config": []}, {"x": {"x": {}}}, {"image": {}}),
}


def check(build: dict[str, Any]) -> None:
    check_build(build)
    check_fits(build, CONFIG, CHAT)


@pytest.mark.parametrize("field", [*BUILD, "device", "drafter", "float16"])
def test_odd_values_of_a_field_are_an_error_that_names_it(field: str) -> None:
    check(BUILD)
    for value in ODD:
        if value in FREE.get(field, ()):
            check({**BUILD, field: value})
            continue
        with pytest.raises(
            ArtifactError, match=f"{field}.* is damaged|damaged at `{field}"
        ) as found:
            check({**BUILD, field: value})
        assert found.value.hint, value
    for value in ({"kind": "hub", "config": "x", "model": 5}, {"kind": 1, "config": "x"}):
        with pytest.raises(ArtifactError, match="drafter"):
            check({**BUILD, "drafter": value})


@pytest.mark.parametrize("field", ["source", "target", "recipe", "context_length", "limits"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    build = {name: value for name, value in BUILD.items() if name != field}
    with pytest.raises(ArtifactError, match=f"`{field}` is damaged"):
        check(build)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context_length", 512),
        ("prefill_chunk", 1024),
        ("suppressed_tokens", [CONFIG.vocab_size]),
        ("media", settings_of(CONFIG, 280).to_json() | {"audio": None}),
        ("media", replace(settings_of(CONFIG, 280), image=None).to_json()),
        ("media", None),
        ("device", "cuda"),
        ("limits", "h200"),
    ],
)
def test_what_belongs_to_another_package_is_named(field: str, value: object) -> None:
    with pytest.raises(ArtifactError, match=f"`{field}` is damaged"):
        check({**BUILD, field: value})


def test_packages_of_text_and_every_budget_are_taken() -> None:
    for budget in (70, 1120):
        for shape in ("wide", "square"):
            check({**BUILD, "media": settings_of(CONFIG, budget, shape).to_json()})
    build = {name: BUILD[name] for name in BUILD if name not in ("modalities", "overrides")}
    build["media"] = None
    check_build(build)
    check_fits(build, TEXT, CHAT)

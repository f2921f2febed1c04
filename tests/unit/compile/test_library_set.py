"""The libraries of a request: each with its target and plan, all with one set of splits."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.compile.compilation import LibraryPlan
from gemma4_compile.compile.library_set import (
    check_plans,
    library_plans,
    needs_of,
)
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.compile.resolve import Sizes, choose
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.targets.libraries import LIBRARIES, fitting_forms
from gemma4_compile.targets.spec import NATIVE, WORDS

CONFIG = Gemma4Config.from_preset("gemma-4-E2B-it")
SEES = Gemma4Config.from_preset("gemma-4-31B-it", frozenset({Modality.TEXT, Modality.IMAGE}))
"""128 MiB are an activation of 560 rows of a picture in float32, of 1,120 in float16."""


def _request(*names: str, quant: str = "q4f16") -> CompileRequest:
    forms = tuple(LIBRARIES[name] for name in names)
    return CompileRequest("gemma-4-E2B-it", "webgpu", quant, Path("no such"), libraries=forms)


def _plans(
    request: CompileRequest,
    config: Gemma4Config,
    context: int,
    chunk: int,
    image_tokens: int = 280,
) -> tuple[LibraryPlan, ...]:
    sizes = Sizes(context, chunk, image_tokens)
    return library_plans(choose(request), sizes, config)


def test_splits_are_those_of_the_strictest_target() -> None:
    alone = _plans(_request("cuda"), CONFIG, 4096, 512)
    beside = _plans(_request("cuda", "default"), CONFIG, 4096, 512)
    assert alone[0].numbers.split_bytes is None
    assert [plan.numbers.split_bytes for plan in beside] == [128 << 20] * 2
    assert beside[0].numbers.recipe.most_parts > alone[0].numbers.recipe.most_parts == 1
    assert beside[0].target.max_binding_bytes is None, "what it may bind is its own"


def test_each_names_its_needs() -> None:
    names = ("default", "f16", "int8", "h200-f32")
    needs = needs_of(_plans(_request(*names), CONFIG, 4096, 512))
    assert [(one.name, one.file, one.float16) for one in needs] == [
        ("default", "model.wasm", WORDS),
        ("f16", "model-f16.wasm", NATIVE),
        ("int8", "model-int8.wasm", NATIVE),
        ("h200-f32", "model-h200-f32.wasm", WORDS),
    ]
    found = [one.plan.provenance() for one in needs]
    assert [one["features"] for one in found] == [[], ["shader-f16"], ["shader-f16"], ["subgroups"]]
    packed = ["packed_4x8_integer_dot_product"]
    assert [one["language_features"] for one in found] == [[], [], packed, packed]
    assert all(one["max_shared_memory_bytes"] == 32 << 10 for one in found)


def test_a_recipe_without_float16_has_none() -> None:
    (plan,) = _plans(_request("default", quant="q4f32"), CONFIG, 4096, 512)
    assert (plan.target.float16, needs_of([plan])[0].float16) == (NATIVE, None)


def test_a_single_library_has_the_name_of_its_form() -> None:
    asked = CompileRequest("gemma-4-E2B-it", "webgpu", "q4f16", Path("no such"), limits="compat")
    (plan,) = _plans(asked, CONFIG, 4096, 512)
    assert plan.name == "compat"


def test_forms_of_every_recipe_are_planned() -> None:
    forms = fitting_forms(list(LIBRARIES), has_float16=True, takes_int8=True)
    plans = _plans(_request(*(form.name for form in forms)), CONFIG, 1024, 128)
    assert [plan.name for plan in plans] == list(LIBRARIES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (
            ("default", "f16", "h200-f32", "cpu"),
            "--image-tokens 560 fits; without default, h200-f32 it can be built: "
            "--libraries f16,cpu",
        ),
        (("default",), "--image-tokens 560 fits"),
    ],
)
def test_pictures_that_some_libraries_hold_are_answered_with_those(
    names: tuple[str, ...], hint: str
) -> None:
    with pytest.raises(UsageError, match="--image-tokens 1120: one activation") as caught:
        check_plans(_plans(_request(*names), SEES, 8192, 1200, image_tokens=1120))
    assert caught.value.hint == hint
    *_, named = hint.split("--libraries ")
    if len(names) > 1:
        check_plans(_plans(_request(*named.split(",")), SEES, 8192, 1200, image_tokens=1120))
    check_plans(_plans(_request(*names), SEES, 8192, 1200, image_tokens=560))


def test_keys_of_a_long_context_are_in_parts_where_they_are_in_float32() -> None:
    plans = _plans(_request("default", "f16", "h200-f32", "cpu"), CONFIG, 131_072, 512)
    check_plans(plans)
    assert [plan.numbers.kv_parts for plan in plans] == [2, 1, 2, 1]

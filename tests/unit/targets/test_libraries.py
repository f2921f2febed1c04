"""The registry of library forms: names, targets, and which of them differ for a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options import package as options
from gemma4_compile.package.libraries import MAX_NAME_LETTERS, library_file
from gemma4_compile.targets import TARGETS, target_spec
from gemma4_compile.targets.libraries import LIBRARIES, fitting_forms, form_name, wider_libraries
from gemma4_compile.targets.spec import ACTIVATIONS, FLOAT, INT8, NATIVE, WORDS


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_form_can_be_made(name: str) -> None:
    form = LIBRARIES[name]
    spec = target_spec(form.target, form.limits)
    assert form.activations in (options.ACTIVATIONS[0], *spec.activation_forms)
    assert form.float16 == NATIVE or (form.float16 == WORDS and spec.float16_feature)
    assert len(name) <= MAX_NAME_LETTERS
    assert library_file(name, spec.library_suffix, main=False) == Path(f"model-{name}").name + (
        spec.library_suffix
    )


def test_every_target_has_a_form() -> None:
    assert {form.target for form in LIBRARIES.values()} == set(TARGETS)
    others = {name: form for name, form in LIBRARIES.items() if form.target != "webgpu"}
    firsts = {form.target: name for name, form in reversed(others.items())}
    assert all(target == name for target, name in firsts.items())


def test_every_limit_of_metal_has_a_library() -> None:
    found = [form.limits for form in LIBRARIES.values() if form.target == "metal"]
    assert found == list(TARGETS["metal"].limits)


def test_the_first_form_of_browsers_asks_for_nothing() -> None:
    first = next(form for form in LIBRARIES.values() if form.target == "webgpu")
    spec = target_spec(first.target, first.limits)
    assert (spec.features, first.activations, first.float16) == ((), FLOAT, WORDS)


def test_float32_is_offered_where_every_target_has_it() -> None:
    assert wider_libraries({"webgpu"}) == ("default", "h200-f32")
    assert wider_libraries({"webgpu", "cuda"}) == wider_libraries({"metal"}) == ()


BROWSERS = [name for name, form in LIBRARIES.items() if form.target == "webgpu"]


@pytest.mark.parametrize(
    ("has_float16", "takes_int8", "missing"),
    [
        (True, True, set()),
        (False, True, {"f16", "h200-f32", "h200-matrices"}),
        (True, False, {"int8"}),
        (False, False, {"f16", "h200-f32", "int8", "h200-matrices"}),
    ],
)
def test_forms_that_are_the_same_are_made_once(
    has_float16: bool, takes_int8: bool, missing: set[str]
) -> None:
    forms = fitting_forms(BROWSERS, has_float16=has_float16, takes_int8=takes_int8)
    assert [form.name for form in forms] == [name for name in BROWSERS if name not in missing]
    assert takes_int8 or all(form.activations != INT8 for form in forms)


def test_a_form_has_the_name_of_the_first_that_is_the_same() -> None:
    (form,) = fitting_forms(["f16"], has_float16=False, takes_int8=True)
    assert form.name == "default"


@pytest.mark.parametrize(
    "names", [["h200", "h200-matrices"], ["metal-simdgroups", "metal-tensors"]]
)
def test_products_of_float16_are_for_recipes_with_float16(names: list[str]) -> None:
    both = fitting_forms(names, has_float16=True, takes_int8=True)
    assert [form.name for form in both] == names
    for asked in (names, names[1:]):
        (form,) = fitting_forms(asked, has_float16=False, takes_int8=True)
        assert (form.name, form.limits) == (names[0], LIBRARIES[names[0]].limits)


@pytest.mark.parametrize("names", [["h100"], ["default", "default"], [""]])
def test_names_are_checked(names: list[str]) -> None:
    with pytest.raises(UsageError, match="library"):
        fitting_forms(names, has_float16=True, takes_int8=True)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (("webgpu", "default", FLOAT, WORDS), "default"),
        (("webgpu", "default", FLOAT, None), "default"),
        (("webgpu", "default", FLOAT, NATIVE), "f16"),
        (("webgpu", "h200", INT8, None), "h200"),
        (("webgpu", "h200", FLOAT, NATIVE), "h200-float"),
        (("webgpu", "compat", FLOAT, NATIVE), "compat"),
        (("webgpu", "h200-matrices", INT8, NATIVE), "h200-matrices"),
        (("webgpu", "subgroups", INT8, WORDS), "subgroups-int8-words"),
        (("cuda", "default", FLOAT, NATIVE), "cuda"),
        (("metal", "default", FLOAT, NATIVE), "metal"),
        (("metal", "simdgroups", FLOAT, None), "metal-simdgroups"),
        (("metal", "simdgroups-small", FLOAT, NATIVE), "metal-simdgroups-small"),
        (("metal", "tensors", FLOAT, NATIVE), "metal-tensors"),
    ],
)
def test_a_single_library_has_a_name(form: tuple[str, str, str, str | None], name: str) -> None:
    assert form_name(*form) == name


def test_every_form_has_a_name_of_its_own() -> None:
    limits = TARGETS["webgpu"].limits
    forms = [
        (limit, form, float16)
        for limit in limits
        for form in ACTIVATIONS
        for float16 in (NATIVE, WORDS)
    ]
    assert len({form_name("webgpu", *form) for form in forms}) == len(forms)

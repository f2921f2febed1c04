"""The names of libraries and targets that a command line may give: those of the registries."""

from __future__ import annotations

import json

import pytest

from gemma4_compile.cli import compile as cli
from gemma4_compile.errors import UsageError
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.options.libraries import LIBRARIES, LIMITS, NAMED, libraries_help, targets
from gemma4_compile.targets import libraries as registry


def test_the_compiler_knows_the_same_names() -> None:
    assert list(LIBRARIES) == list(registry.LIBRARIES)
    assert {one["target"] for one in LIBRARIES.values()} == set(LIMITS)


def test_every_library_for_browsers_is_made_by_default_but_experiments() -> None:
    browsers = [name for name, one in LIBRARIES.items() if one["target"] == "webgpu"]
    assert list(made()) == [name for name in browsers if name not in registry.EXPERIMENTS]
    assert made() == made("--libraries", "all")
    assert all(name in libraries_help() for name in browsers)
    assert made("--libraries", "h200-matrices,h200,f16") == ("f16", "h200", "h200-matrices")
    assert set(registry.EXPERIMENTS) == {"h200-matrices", "metal-tensors"}


def test_targets_come_in_their_order() -> None:
    assert targets("cuda, webgpu") == ("cuda", "webgpu")


def test_tiles_for_tuning_are_made_where_they_are_named() -> None:
    tiles = [name for name, one in LIBRARIES.items() if NAMED in one]
    assert tiles
    assert all(name in libraries_help() for name in tiles)
    assert made("--target", "metal") == ("metal",)
    assert made("--target", "metal", "--libraries", "all") == ("metal", *tiles)
    for name in ("metal-simdgroups", "metal-tensors"):
        assert made("--target", "metal", "--libraries", name) == ("metal", name)


def test_a_list_names_a_library_of_every_target() -> None:
    given = ("--target", "webgpu,metal", "--libraries", "metal-tensors")
    with pytest.raises(UsageError, match="no library for webgpu") as caught:
        made(*given)
    assert "--libraries default,metal-tensors" in str(caught.value.hint)
    renewed = made(*given, "--only", "library")
    assert renewed == ("metal", "metal-tensors"), "and the package's others stay"


def made(*given: str) -> tuple[str, ...]:
    return COMMAND.parse(["tiny", "-o", "out", *given]).library_names


def test_a_form_of_float16_makes_one_library_of_a_target_that_has_it() -> None:
    assert made("--float16", "words", "--limits", "compat") == ()
    assert made("--float16", "native", "--target", "cuda") == ()
    for given, said in (
        (("words", "--target", "cuda"), "target `cuda` has no such library"),
        (("halves",), "unknown form `halves`"),
        (("words", "--libraries", "int8"), "--float16 makes one library"),
    ):
        with pytest.raises(UsageError, match=said):
            made("--float16", *given)


def test_any_limits_may_be_planned_without_16_bit_floats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["gemma-4-E2B-it", "--plan", "--json", "--limits", "compat"]
    found = []
    for form in ([], ["--float16", "words"]):
        assert cli.main([*given, *form]) == 0
        (library,) = json.loads(capsys.readouterr().out)["libraries"]
        found.append((library["name"], library["requirements"]["features"]))
    assert found == [("compat", ["shader-f16"]), ("compat-words", [])]

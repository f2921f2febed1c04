from __future__ import annotations

from gemma4_compile.options import verify as verify_options
from gemma4_compile.options.verify import COMMAND


def test_steps_are_at_least_one() -> None:
    COMMAND.parse(["DIR", "--reference", "tiny", "--steps", "1"])
    assert COMMAND.parsed(["DIR", "--reference", "tiny", "--steps", "0"]) == 2


def test_recipes_are_compared_on_a_checkpoint() -> None:
    recipes = ["MODEL", "--compare-recipes", "q4f16,q8f16"]
    COMMAND.parse(recipes)
    COMMAND.parse([*recipes, "--texts", "chat,code", "--output", "a.json"])
    COMMAND.parse([*recipes, "--texts", "none", "--text", "a.txt"])
    assert COMMAND.parsed([*recipes, "--reference", "tiny"]) == 2
    assert COMMAND.parsed([*recipes, "--texts", "poems"]) == 2
    COMMAND.parse([*recipes, "--tokenizer", "DIR"])
    assert COMMAND.parsed([*recipes, "--text-tokens", "1"]) == 2
    assert COMMAND.parsed(["MODEL", "--compare-recipes", "q4f16,"]) == 2


def test_a_package_needs_its_reference_and_holds_its_report() -> None:
    assert COMMAND.parsed(["DIR"]) == 2
    assert COMMAND.parsed(["DIR", "--reference", "tiny", "--output", "a.json"]) == 2
    assert COMMAND.parsed(["DIR", "--reference", "tiny", "--tokenizer", "DIR"]) == 2
    COMMAND.parse(["DIR", "--reference", "tiny", "--texts", "none"])


def test_a_library_is_of_a_package() -> None:
    COMMAND.parse(["DIR", "--reference", "tiny", "--library", "f16"])
    for comparison in (["--compare-recipes", "q4f16"], ["--fit-bits", "4.6"]):
        assert COMMAND.parsed(["MODEL", *comparison, "--library", "f16"]) == 2


def test_a_recipe_is_fitted_to_a_checkpoint() -> None:
    fit = ["MODEL", "--fit-bits", "4.6"]
    COMMAND.parse(fit)
    COMMAND.parse([*fit, "--text", "a.txt", "--output", "recipe.json"])
    COMMAND.parse([*fit, "--tokenizer", "DIR", "--adapter", "A"])
    assert COMMAND.parsed([*fit, "--reference", "tiny"]) == 2
    assert COMMAND.parsed([*fit, "--compare-recipes", "q4f16"]) == 2
    for wrong in ("4", "4.4", "nan", "inf", "-5", "four", ""):
        assert COMMAND.parsed(["MODEL", f"--fit-bits={wrong}"]) == 2


def test_parts_of_a_model_are_tried_on_shorter_texts() -> None:
    for options, tokens in (
        (["--fit-bits", "5"], verify_options.FIT_TEXT_TOKENS),
        (["--compare-recipes", "q4f16"], verify_options.DEFAULT_TEXT_TOKENS),
        (["--fit-bits", "5", "--text-tokens", "7"], 7),
    ):
        assert COMMAND.parse(["MODEL", *options]).most_text_tokens == tokens

from __future__ import annotations

from gemma4_compile.options import verify as verify_options


def test_steps_are_at_least_one() -> None:
    assert verify_options.main(["DIR", "--reference", "tiny", "--steps", "1"]) == 0
    assert verify_options.main(["DIR", "--reference", "tiny", "--steps", "0"]) == 2


def test_recipes_are_compared_on_a_checkpoint() -> None:
    recipes = ["MODEL", "--compare-recipes", "q4f16,q8f16"]
    assert verify_options.main(recipes) == 0
    assert verify_options.main([*recipes, "--texts", "chat,code", "--output", "a.json"]) == 0
    assert verify_options.main([*recipes, "--texts", "none", "--text", "a.txt"]) == 0
    assert verify_options.main([*recipes, "--reference", "tiny"]) == 2
    assert verify_options.main([*recipes, "--texts", "poems"]) == 2
    assert verify_options.main([*recipes, "--tokenizer", "DIR"]) == 0
    assert verify_options.main([*recipes, "--text-tokens", "1"]) == 2
    assert verify_options.main(["MODEL", "--compare-recipes", "q4f16,"]) == 2


def test_a_package_needs_its_reference_and_holds_its_report() -> None:
    assert verify_options.main(["DIR"]) == 2
    assert verify_options.main(["DIR", "--reference", "tiny", "--output", "a.json"]) == 2
    assert verify_options.main(["DIR", "--reference", "tiny", "--tokenizer", "DIR"]) == 2
    assert verify_options.main(["DIR", "--reference", "tiny", "--texts", "none"]) == 0


def test_a_library_is_of_a_package() -> None:
    assert verify_options.main(["DIR", "--reference", "tiny", "--library", "f16"]) == 0
    for comparison in (["--compare-recipes", "q4f16"], ["--fit-bits", "4.6"]):
        assert verify_options.main(["MODEL", *comparison, "--library", "f16"]) == 2


def test_a_recipe_is_fitted_to_a_checkpoint() -> None:
    fit = ["MODEL", "--fit-bits", "4.6"]
    assert verify_options.main(fit) == 0
    assert verify_options.main([*fit, "--text", "a.txt", "--output", "recipe.json"]) == 0
    assert verify_options.main([*fit, "--tokenizer", "DIR", "--adapter", "A"]) == 0
    assert verify_options.main([*fit, "--reference", "tiny"]) == 2
    assert verify_options.main([*fit, "--compare-recipes", "q4f16"]) == 2
    for wrong in ("4", "4.4", "nan", "inf", "-5", "four", ""):
        assert verify_options.main(["MODEL", f"--fit-bits={wrong}"]) == 2


def test_parts_of_a_model_are_tried_on_shorter_texts() -> None:
    parse = verify_options.make_parser().parse_args
    for options, tokens in (
        (["--fit-bits", "5"], verify_options.FIT_TEXT_TOKENS),
        (["--compare-recipes", "q4f16"], verify_options.DEFAULT_TEXT_TOKENS),
        (["--fit-bits", "5", "--text-tokens", "7"], 7),
    ):
        assert verify_options.text_tokens_of(parse(["MODEL", *options])) == tokens

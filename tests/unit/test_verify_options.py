from __future__ import annotations

from gemma4_compile import verify_options


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

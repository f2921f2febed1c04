"""Kernels get the function that they call, and no others."""

from gemma4_compile.targets.wgsl_halves import FUNCTION, write_halves

TEXT = "@compute fn kernel() {{ y[0] = ({})[0]; }}"


def test_a_call_brings_its_function_once() -> None:
    text = TEXT.format("gemma4_halves(w[0]) + gemma4_halves(w[1])")
    assert write_halves(text) == text + FUNCTION
    assert FUNCTION.count("fn gemma4_halves(") == 1


def test_a_text_without_a_call_stays_as_it_is() -> None:
    text = TEXT.format("w[0]")
    assert write_halves(text) == text

"""The registered schemes and recipes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.operators import packings
from gemma4_compile.quantization.scheme import Scheme
from gemma4_compile.quantization.schemes import RECIPES, SCHEMES, recipe_of


def test_schemes_are_found_by_their_own_names() -> None:
    assert all(scheme.name == name for name, scheme in SCHEMES.items())


@pytest.mark.parametrize(
    ("name", "weights", "head", "small", "router"),
    [
        ("q4f16", "q4f16_1", "q8f16_1", "q8f16_1", "q0f16"),
        ("q4f32", "q4f32_1", "q8f32_1", "q8f32_1", "q0f32"),
        ("q4f16s", "q4f16_1", "q4f16_1", "q8f16_1", "q0f16"),
        ("q4f16m", "q4f16_1", "q6f16_1", "q8f16_1", "q0f16"),
        ("q4f16l", "q4f16_1", "q8f16_1", "q8f16_1", "q0f16"),
        ("q4kf16", "q4_k", "q6f16_1", "q8f16_1", "q0f16"),
        ("q4kf16m", "q4_k", "q6f16_1", "q8f16_1", "q0f16"),
        ("q8f16", "q8f16_1", "q8f16_1", "q8f16_1", "q0f16"),
        ("f16", "q0f16", "q0f16", "q0f16", "q0f16"),
        ("f32", "q0f32", "q0f32", "q0f32", "q0f32"),
    ],
)
def test_recipes_give_each_role_its_scheme(
    name: str, weights: str, head: str, small: str, router: str
) -> None:
    schemes = RECIPES[name].schemes
    assert set(schemes) == set(Role)
    assert schemes[Role.LINEAR].name == schemes[Role.EXPERTS].name == weights
    assert schemes[Role.TOKEN_EMBEDDING].name == schemes[Role.LM_HEAD].name == head
    assert schemes[Role.DRAFTER_HEAD].name == weights
    assert schemes[Role.PER_LAYER_LINEAR].name == schemes[Role.VISION_LINEAR].name == small
    assert (schemes[Role.ROUTER].name, schemes[Role.VECTOR].name) == (router, "q0f32")


def test_a_line_with_an_unknown_scheme_is_an_error() -> None:
    with pytest.raises(KeyError, match="q9"):
        recipe_of("x", {"activations": "float16", "weights": "q9", "small": "q9"})


BYTES = [
    scheme for scheme in SCHEMES.values() if scheme.group_size and scheme.name.startswith("q8")
]


@given(
    weights=st.lists(st.floats(-1, 1, width=32), min_size=32, max_size=32),
    exponent=st.integers(-40, 20),
    scheme=st.sampled_from(BYTES),
)
def test_bytes_stop_below_what_signed_products_do_not_hold(
    weights: list[float], exponent: int, scheme: Scheme
) -> None:
    rows = np.array([weights], np.float32) * np.float32(2.0**exponent)
    words, _ = scheme.store(rows, name="w", first_row=0)
    assert packings.BYTES.unpack(words).max() <= 254

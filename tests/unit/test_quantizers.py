"""The quantizers of the benchmark: what each form can hold, and that none is worse than it is."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from benchmarks.quantizers import CODEBOOK, QUANTIZERS, Float32Array
from benchmarks.rounding_loss import choose, points, stored_bytes
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.targets import target_spec

WEIGHTS = np.random.default_rng(3).standard_normal((16, 512)).astype(np.float32)
# Relative errors of normal weights: of the groups' largest weights over the levels, as published
# or measured elsewhere, to 2 %.
EXPECTED = {
    "max7": 0.0971,
    "Q4_0": 0.0861,
    "MLX 4, groups of 64": 0.091,
    "Q4_K": 0.0718,
    "signed": 0.0810,
}


def error(name: str, weights: Float32Array) -> float:
    return float(np.linalg.norm(QUANTIZERS[name](weights) - weights) / np.linalg.norm(weights))


@pytest.mark.parametrize("name", EXPECTED)
def test_errors_are_those_of_others(name: str) -> None:
    assert error(name, WEIGHTS) == pytest.approx(EXPECTED[name], rel=0.02)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_group_holds_no_more_values_than_its_bits_have(name: str) -> None:
    quantizer = QUANTIZERS[name]
    stored = quantizer(WEIGHTS)
    assert stored.shape == WEIGHTS.shape
    assert stored.dtype == np.float32
    own = {"Q4_K": 32, "q4_k": 32, "Q6_K": 16, "2 bits, minima": 32, "3 bits, minima": 32}
    group = own.get(name, quantizer.block)
    codes = [len(np.unique(one)) for one in stored.reshape(-1, group)]
    assert max(codes) <= 2 ** int(quantizer.bits)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("cols", [32, 160, 288, 512])
def test_rows_of_any_length_zeros_and_signs(name: str, cols: int) -> None:
    rows = WEIGHTS[:4, :cols].copy()
    rows[1] = 0
    stored = QUANTIZERS[name](rows)
    assert not stored[1].any()
    assert np.isfinite(stored).all()
    most = 0.12 * max(1.0, 2 ** (4.5 - QUANTIZERS[name].bits))  # a bit less doubles a step
    assert np.linalg.norm(stored - rows) < most * np.linalg.norm(rows)


def test_q4_0_by_hand() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = (4.0, -2.0, 1.0, 0.2)
    expected = row.copy()  # the step is -0.5: 4 is its code -8, and 0.2 is nearer to 0 than to 0.5
    expected[0, 3] = 0
    assert np.array_equal(QUANTIZERS["Q4_0"](row), expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_llama_cpps_own_package_rounds_so(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    expected = gguf.quants.dequantize(gguf.quants.quantize(WEIGHTS, kind), kind)
    found = QUANTIZERS[{"Q8_0": "q8f16"}.get(name, name)](WEIGHTS)
    if name == "Q4_0":
        assert np.array_equal(found, expected)
    else:  # other ties, and a scale that is rounded before and not after
        assert np.abs(found - expected).max() < 0.02 * np.abs(WEIGHTS).max()
    assert np.array_equal(gguf.quants.IQ4_NL.kvalues, CODEBOOK)


def test_iq4_nl_holds_multiples_of_its_codebook() -> None:
    row = (CODEBOOK[np.arange(32) % 16] * np.float32(0.25))[None]
    assert np.array_equal(QUANTIZERS["IQ4_NL"](row), row)


@pytest.mark.parametrize(
    ("recipe", "point"),
    [
        ("q4f16s", "4 bits"),
        ("q4f16", "4 bits, head 8"),
        ("q4f16m", "4 bits, head, attention 6"),
        ("q4f16l", "4 bits, head, attention 8"),
        ("q8f16", "q8f16"),
    ],
)
@pytest.mark.parametrize("model", ["gemma-4-E2B-it", "gemma-4-26B-A4B-it"])
def test_bytes_are_those_of_the_plan(recipe: str, point: str, model: str) -> None:
    check_bytes(recipe, point, model)


@pytest.mark.parametrize(
    ("recipe", "point"), [("q4kf16", "q4_k, head 6"), ("q4kf16m", "q4_k, head, attention 6")]
)
def test_bytes_with_minima_are_those_of_the_plan(recipe: str, point: str) -> None:
    """Of a size whose widths are whole blocks."""
    check_bytes(recipe, point, "gemma-4-E2B-it")


def check_bytes(recipe: str, point: str, model: str) -> None:
    config = Gemma4Config.from_preset(model)
    plan = make_plan(config, recipe, target_spec("cpu"), 64, 64)
    whole, read = stored_bytes(config, points()[point])
    router = 2 * dict(plan.parameters).get("router", 0)
    vectors = 4 * dict(plan.parameters)["vectors"]
    assert whole + router + vectors == plan.recipe.weights_bytes
    assert read + router == plan.recipe.bytes_per_token


def test_a_part_or_a_third_of_the_layers_is_chosen() -> None:
    of = choose({"rest": "q4f16", "head": "q8f16", "last third": "signed 6"}, 9)
    assert [of("q", layer) for layer in (0, 5, 6, 8)] == ["q4f16", "q4f16", "signed 6", "signed 6"]
    assert (of("head", None), of("table", None), of("small", 8)) == ("q8f16", "q4f16", "q8f16")

"""The sampler's functions on tiny vocabularies."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

from gemma4_compile import abi
from gemma4_compile.model_spec.text.sampler import SamplerModule, SamplerOptions
from gemma4_compile.operators.sampling import MASKED
from tests.unit.model_spec.exported import random, tensor

VOCAB = 40  # no multiple of a block, nor of a mask word
NONE = {"param_mode": "none", "effect_mode": "none"}
I32 = "int32"


@cache
def machine() -> relax.VirtualMachine:
    row = tensor(1, VOCAB)
    lists = {name: tensor("n", dtype=I32) for name in ("pos2seq", "token_ids")}
    functions = {
        abi.SOFTMAX: {"logits": tensor(1, 1, VOCAB), "temperature": tensor(1)},
        abi.ARGSORT: {"probs": row},
        abi.SAMPLE_TOP_P: {
            "probs": row,
            "indices": row,
            "uniform": tensor(1),
            "sample_index": tensor(1, dtype=I32),
            "top_p": tensor(1),
        },
        abi.LOGIT_BIAS: {"logits": row, **lists, "bias": tensor("n")},
        abi.PENALTY: {
            "logits": row,
            "seq_ids": tensor("m", dtype=I32),
            **lists,
            "counts": tensor("n", dtype=I32),
            "penalties": tensor("m", 3),
        },
        abi.BITMASK: {
            "logits": row,
            "seq_ids": tensor(1, dtype=I32),
            "bitmask": tensor(1, 2, dtype=I32),
        },
    }
    module, parameters = SamplerModule(VOCAB, SamplerOptions(softmax_blocks=3)).export_tvm(
        {name: {**inputs, "$": NONE} for name, inputs in functions.items()}
    )
    assert not parameters
    return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())


def call(name: str, *args: np.ndarray) -> list[np.ndarray]:
    result = machine()[name](*map(tvm.runtime.tensor, args))
    return [one.numpy() for one in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_probabilities_at_a_temperature(temperature: float) -> None:
    logits = 5 * random(0, 1, 1, VOCAB)
    (found,) = call(abi.SOFTMAX, logits, f32(temperature))
    weights = np.exp((logits - logits.max()).astype(float) / temperature)
    assert found.shape == (1, 1, VOCAB)
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-5, atol=1e-9)


def test_suppressed_tokens_have_no_probability() -> None:
    logits = np.zeros((1, 1, VOCAB), np.float32)
    logits[..., 1:] = MASKED
    (found,) = call(abi.SOFTMAX, logits, f32(1))
    np.testing.assert_array_equal(found[0, 0, :2], [1, 0])


def test_probabilities_are_handed_through_twice() -> None:
    probs = random(0, 1, VOCAB)
    first, second = call(abi.ARGSORT, probs)
    np.testing.assert_array_equal(first, probs)
    np.testing.assert_array_equal(second, probs)


def draw(probs: np.ndarray, uniform: float, top_p: float) -> int:
    (token,) = call(abi.SAMPLE_TOP_P, probs, probs, f32(uniform), i32(0), f32(top_p))
    assert token.shape == (1,)
    return int(token[0])


def test_draws_come_from_the_likeliest_tokens_alone() -> None:
    probs = np.zeros((1, VOCAB), np.float32)
    probs[0, [5, 9, 30]] = 0.5, 0.3, 0.2
    draws = np.linspace(0, 0.999, 21)
    assert {draw(probs, u, 1e-6) for u in draws} == {5}
    assert {draw(probs, u, 0.7) for u in draws} == {5, 9}
    assert [draw(probs, u, 1.0) for u in (0.0, 0.49, 0.51, 0.79, 0.81, 0.999)] == [
        *(5, 5, 9, 9, 30, 30)
    ]


def test_biases_are_added() -> None:
    logits = random(0, 1, VOCAB)
    (found,) = call(abi.LOGIT_BIAS, logits, i32(0, 0, 0), i32(3, 39, 3), f32(1, -100, 0.5))
    expected = logits.copy()
    expected[0, 3] += 1.5
    expected[0, 39] -= 100
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_penalties_lower_what_was_said() -> None:
    logits = np.ones((1, VOCAB), np.float32)
    logits[0, 7] = -1
    presence, frequency, repetition = 0.25, 0.125, 2.0
    penalties = f32(presence, frequency, repetition)[None]
    (found,) = call(abi.PENALTY, logits, i32(0), i32(0, 0), i32(3, 7), i32(2, 1), penalties)
    expected = logits.copy()
    expected[0, 3] = (1 - presence - 2 * frequency) / repetition
    expected[0, 7] = (-1 - presence - frequency) * repetition
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_only_tokens_with_their_bit_stay() -> None:
    logits = random(0, 1, VOCAB)
    mask = np.array([[(1 << 0) | (1 << 5) | (1 << 31), 1 << 2]], np.uint32).view(np.int32)
    (found,) = call(abi.BITMASK, logits, i32(0), mask)
    allowed = [0, 5, 31, 34]
    np.testing.assert_array_equal(found[0, allowed], logits[0, allowed])
    assert (np.delete(found[0], allowed) == np.float32(MASKED)).all()

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.quantization.groups import GroupScheme, dequantize, quantize

torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_is_the_plain_rule_and_stored_exactly(bits: int) -> None:
    from tools.training.tiny.fake_quantisation import rounded

    weight = np.random.default_rng(bits).standard_normal((8, 96)).astype(np.float32)
    found = rounded(torch.from_numpy(weight), bits).numpy()
    groups, levels = weight.reshape(-1, 32), 2 ** (bits - 1) - 1
    steps = np.abs(groups).max(axis=1, keepdims=True) / np.float32(levels)
    steps = steps.astype(np.float16).astype(np.float32)
    plain = np.clip(np.rint(groups / steps), -levels, levels) * steps
    np.testing.assert_array_equal(found, plain.reshape(weight.shape))
    scheme = GroupScheme(bits, "float16")
    np.testing.assert_array_equal(dequantize(*quantize(found, scheme), scheme), found)


def test_4_bit_weights_are_stored_with_less_error_than_the_training_has() -> None:
    from tools.training.tiny.fake_quantisation import rounded

    weight = np.random.default_rng(4).standard_normal((8, 96)).astype(np.float32)
    scheme = GroupScheme(4, "float16")
    stored = dequantize(*quantize(weight, scheme), scheme)
    seen = rounded(torch.from_numpy(weight), 4).numpy()
    errors = [((one - weight) ** 2).reshape(-1, 32).sum(axis=1) for one in (stored, seen)]
    assert (errors[0] <= errors[1]).all()
    assert errors[0].sum() < 0.8 * errors[1].sum()


def test_the_small_projections_keep_8_bits_and_vectors_stay() -> None:
    from tools.training.tiny.fake_quantisation import bits_of

    assert bits_of("model.layers.0.mlp.up_proj.weight", 4) == 4
    assert bits_of("model.embed_tokens.weight", 4) == 4
    assert bits_of("model.embed_tokens_per_layer.weight", 4) == 4
    assert bits_of("model.per_layer_model_projection.weight", 4) == 8
    assert bits_of("model.layers.0.per_layer_projection.weight", 4) == 8
    assert bits_of("model.layers.0.self_attn.q_norm.weight", 4) is None
    assert bits_of("model.layers.0.layer_scalar", 4) is None

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.quantization.groups import GroupScheme, dequantize, quantize

torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_is_what_the_package_stores(bits: int) -> None:
    from tools.training.tiny.fake_quantisation import rounded

    weight = np.random.default_rng(bits).standard_normal((8, 96)).astype(np.float32)
    scheme = GroupScheme(bits, "float16")
    expected = dequantize(*quantize(weight, scheme), scheme)
    np.testing.assert_array_equal(rounded(torch.from_numpy(weight), bits).numpy(), expected)


def test_the_small_projections_keep_8_bits_and_vectors_stay() -> None:
    from tools.training.tiny.fake_quantisation import bits_of

    assert bits_of("model.layers.0.mlp.up_proj.weight", 4) == 4
    assert bits_of("model.embed_tokens.weight", 4) == 4
    assert bits_of("model.embed_tokens_per_layer.weight", 4) == 4
    assert bits_of("model.per_layer_model_projection.weight", 4) == 8
    assert bits_of("model.layers.0.per_layer_projection.weight", 4) == 8
    assert bits_of("model.layers.0.self_attn.q_norm.weight", 4) is None
    assert bits_of("model.layers.0.layer_scalar", 4) is None

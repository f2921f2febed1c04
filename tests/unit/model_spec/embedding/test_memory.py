"""Memory of an encoder's activations."""

from __future__ import annotations

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.embedding.memory import client_texts, encoder_memory
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.targets import target_spec


def test_the_largest_are_the_inputs_of_all_layers() -> None:
    text = {"model_type": "embedding_gemma2_text"}
    memory = encoder_memory(Gemma4Config.from_dict(text), "float16")
    assert max(memory.tensors) == 4 * 24 * 512
    # While they are normed, beside the embeddings.
    assert max(sum(sizes) for sizes in memory.together) == 4 * 512 + 2 * 4 * 24 * 512
    # In a full layer, which is wider: the residual stream twice, the inputs, all angles, qkv and q,
    # and of 2 bytes k, v and what was attended.
    always = 2 * 4 * 512 + 4 * 24 * 512 + 2 * 4 * (128 + 256)
    layer = 4 * (4 + 2 * 1) * 512 + 4 * 4 * 512 + 2 * (512 + 512 + 4 * 512)
    assert always + layer in {sum(sizes) for sizes in memory.together}


def test_the_stock_clients_answer_is_counted_where_it_calls() -> None:
    config = Gemma4Config.from_dict({"model_type": "embedding_gemma2_text"})
    page, native = (
        make_plan(config, "q4f16", target_spec(name), 2048, 2048) for name in ("webgpu", "cuda")
    )
    vector = 4 * 768  # float32, which is a text's; the client takes a row for each of its tokens
    assert page.activation_bytes - native.activation_bytes == (8 - 1) * 2048 * vector
    assert page.activation_tensor_bytes == native.activation_tensor_bytes == 2048 * 4 * 24 * 512
    few = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    small = Gemma4Config.from_dict({"model_type": "embedding_gemma2_text", **few})
    page = make_plan(small, "q4f16", target_spec("webgpu"), 2048, 2048)
    assert page.activation_tensor_bytes == 8 * 2048 * vector  # now larger than any activation
    assert client_texts(small, "webgpu") == 8
    assert client_texts(small, "cuda") is None

"""Memory of an encoder's activations."""

from __future__ import annotations

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.embedding.memory import encoder_memory


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

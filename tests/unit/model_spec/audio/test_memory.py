"""Memory of the sound input's activations."""

from __future__ import annotations

from gemma4_compile.model_spec.audio.memory import activation_memory
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality

SOUNDS = {Modality.TEXT, Modality.AUDIO}


def test_the_largest_tensor_of_a_tower_is_the_first_convolutions() -> None:
    memory = activation_memory(Gemma4Config.from_preset("gemma-4-E2B-it", SOUNDS), "float16")
    assert max(memory.tensors) == 2 * 64 * 128 * 2  # two times, 64 bands, 128 channels of float16
    assert max(map(sum, memory.together)) == 2 * 4 * 1024 + 2 * 4 * 4096  # a feed-forward block
    assert {size for sizes in memory.together for size in sizes} <= set(memory.tensors)


def test_a_projection_holds_frames() -> None:
    memory = activation_memory(Gemma4Config.from_preset("gemma-4-12B-it", SOUNDS), "float32")
    assert memory.together == ((4 * 640, 4 * 640, 4 * 3840),)


def test_text_alone_needs_none() -> None:
    memory = activation_memory(Gemma4Config.from_preset("gemma-4-E2B-it"), "float16")
    assert (memory.tensors, memory.together) == ((), ())

"""Memory of a picture's activations."""

from __future__ import annotations

from tvm import DataType

from gemma4_compile.media.sizes import BUDGETS, DEFAULT_BUDGET
from gemma4_compile.model_spec.component import ActivationMemory
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import CHANNELS, UnifiedVisionConfig, VisionConfig


def picture_memory(config: Gemma4Config, dtype: str) -> ActivationMemory:
    """Bytes of a block's activations, in `dtype` where they are bounded, of a usual picture."""
    f32, item, vision = 4, DataType(dtype).bits // 8, config.vision
    if vision is None:
        return ActivationMemory((), ())
    rows = f32 * config.hidden_size
    pixels = vision.block_size**2 * CHANNELS
    if isinstance(vision, UnifiedVisionConfig):
        width = vision.embed_dim
        together = (f32 * pixels, item * pixels, f32 * width, item * width, rows)
        return ActivationMemory(tuple(sorted(set(together))), (together,), DEFAULT_BUDGET)
    patches = vision.pooling_kernel_size**2
    hidden, inner = patches * vision.hidden_size, _inner(vision) * patches
    wide = patches * vision.intermediate_size
    attention = (*(f32 * inner,) * 4, *(item * inner,) * 2, f32 * hidden, item * hidden)
    up = (f32 * wide,) if vision.use_clipped_linears else ()
    gated = (*(f32 * hidden,) * 2, item * hidden, *up, item * wide)
    before = (f32 * pixels, item * pixels, f32 * hidden)
    together_sets = (attention, gated, before)
    tensors = sorted({size for sizes in together_sets for size in sizes} | {rows})
    return ActivationMemory(tuple(tensors), together_sets, DEFAULT_BUDGET)


def _inner(vision: VisionConfig) -> int:
    return vision.num_attention_heads * vision.head_dim


def largest_budget(config: Gemma4Config, dtype: str, max_binding_bytes: int | None) -> int:
    """The largest of BUDGETS whose activations fit a target's bindings; 0 if none does."""
    largest = max(picture_memory(config, dtype).tensors, default=0)
    if max_binding_bytes is None:
        return max(BUDGETS)
    return max((n for n in BUDGETS if n * largest <= max_binding_bytes), default=0)

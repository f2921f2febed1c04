"""Writes a GGUF file with the vision tower of a released size and made-up values, for llama.cpp.

Matrices are float16, as llama.cpp's converter writes them by default; vectors and the table of
positions are float32. Names, metadata and shapes are those that the llama.cpp in llama-cpp-python
0.3.36 reads for its projector `gemma4v`. Needs numpy, and of the package only what reads configs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peer.write_gguf import ALIGNMENT, Kind, Metadata, Tensor, matrix, ones, write_file
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.config.vision import CHANNELS, VisionConfig
from gemma4_compile.model_spec.modality import Modality

MOSTLY_F16 = 1  # general.file_type
# Of clipped linears: far beyond what random values reach, so that clips take their time.
BOUND = 60.0
_BOUNDS = {"input_min": -BOUND, "input_max": BOUND, "output_min": -BOUND, "output_max": BOUND}
_NORMS = ("ln1", "ln2", "attn_post_norm", "ffn_post_norm")


def _layer(vision: VisionConfig, index: int) -> Iterator[Tensor]:
    prefix, hidden, width = f"v.blk.{index}", vision.hidden_size, vision.intermediate_size
    shapes = {f"attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "out")}
    shapes |= {"ffn_gate": (hidden, width), "ffn_up": (hidden, width), "ffn_down": (width, hidden)}
    for name, shape in shapes.items():
        yield matrix(f"{prefix}.{name}", *shape, kind=Kind.F16)
        if vision.use_clipped_linears:
            for bound, value in _BOUNDS.items():
                yield Tensor(f"{prefix}.{name}.{bound}", Kind.F32, (1,), (value,))
    for name in ("attn_q_norm", "attn_k_norm"):
        yield ones(f"{prefix}.{name}.weight", vision.head_dim)
    for name in _NORMS:
        yield ones(f"{prefix}.{name}.weight", hidden)


def tensors(config: Gemma4Config) -> tuple[Tensor, ...]:
    """All tensors of the tower, in the order of the file."""
    vision = tower_of(config)
    hidden, patch = vision.hidden_size, vision.patch_size
    found = [
        matrix("v.patch_embd", patch, patch, CHANNELS, hidden, kind=Kind.F16),
        matrix("v.position_embd", hidden, vision.position_embedding_size, 2, kind=Kind.F32),
    ]
    for index in range(vision.num_hidden_layers):
        found += _layer(vision, index)
    if vision.standardize:
        found += [ones("v.std_bias", hidden), ones("v.std_scale", hidden)]
    return (*found, matrix("mm.input_projection", hidden, config.hidden_size, kind=Kind.F16))


def metadata(config: Gemma4Config, name: str) -> Metadata:
    """Keys and values of the header."""
    vision = tower_of(config)
    of_tower: Metadata = {
        "image_size": 224,  # read and not used
        "patch_size": vision.patch_size,
        "embedding_length": vision.hidden_size,
        "feed_forward_length": vision.intermediate_size,
        "block_count": vision.num_hidden_layers,
        "projection_dim": config.hidden_size,
        "attention.head_count": vision.num_attention_heads,
        "attention.layer_norm_epsilon": vision.rms_norm_eps,
        "projector.scale_factor": vision.pooling_kernel_size,
        "image_mean": [0.0] * CHANNELS,
        "image_std": [1.0] * CHANNELS,
    }
    return {
        "general.architecture": "clip",
        "general.name": name,
        "general.file_type": MOSTLY_F16,
        "general.alignment": ALIGNMENT,
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        "clip.vision.projector_type": "gemma4v",
        **{f"clip.vision.{key}": value for key, value in of_tower.items()},
    }


def tower_of(config: Gemma4Config) -> VisionConfig:
    """The vision tower of a size; ValueError for one without (12B projects its patches)."""
    if not isinstance(config.vision, VisionConfig):
        raise ValueError("this size has no vision tower: expected E2B, E4B, 26B-A4B or 31B")
    return config.vision


def main() -> None:
    """Write one file and print its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=preset_names())
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    config = Gemma4Config.from_preset(arguments.model, (Modality.TEXT, Modality.IMAGE))
    table = tensors(config)
    nbytes = write_file(arguments.output, metadata(config, arguments.model), table)
    print(f"{arguments.output}: {nbytes} bytes")


if __name__ == "__main__":
    main()

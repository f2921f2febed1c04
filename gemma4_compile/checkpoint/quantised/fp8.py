"""FP8 of transformers and AutoFP8: E4M3 with a scale for each block, or one for the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from gemma4_compile.checkpoint.quantised.modules import Weights, by_module, floats, matrix, needed
from gemma4_compile.checkpoint.quantised.packed import E4M3, bytes_as
from gemma4_compile.checkpoint.quantised.scaled import Scaled
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, computed
from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields

KEY = "quantization_config"
_SCALES = ("weight_scale_inv", "weight_scale")
"""Of transformers, and of AutoFP8."""
_ENDS = (*_SCALES, "activation_scale", "input_scale")
_MAX_BLOCK = 1 << 24


def read_weights(values: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> Weights:
    """Weights of a checkpoint that transformers quantised with `fp8`.

    Raises
    ------
    CheckpointError, ConfigError
        Naming a tensor that does not fit the config.
    """
    fields = ConfigFields(values, KEY)
    block = None
    if fields.get("weight_block_size") is not None:
        sizes = fields.array("weight_block_size", 2)
        block = tuple(size for size in sizes if type(size) is int and 0 < size < _MAX_BLOCK)
        if len(block) != 2:
            raise ConfigError(
                f"config key `{KEY}.weight_block_size`: expected rows and columns, found "
                f"{str(sizes)[:40]}"
            )
    modules, weights = by_module(tensors, _ENDS, ("weight",))
    for module, parts in modules.items():
        stored = matrix(needed(module, parts, "weight"), ("F8_E4M3",))
        scales = needed(module, parts, next((end for end in _SCALES if end in parts), _SCALES[0]))
        rows, columns = stored.shape
        if block is None:
            floats(scales, (), (1,), (1, 1))
            each = rows, columns
        else:
            each = block[0], block[1]
            floats(scales, (ceil(rows / each[0]), ceil(columns / each[1])))
        decoder = Scaled(bytes_as(stored, E4M3), scales, *each)
        weights[f"{module}.weight"] = computed(f"{module}.weight", stored.shape, decoder)
    if not modules:
        return Weights(weights)
    return Weights(weights, "8-bit floats", ("inputs of layers to 8-bit floats",))

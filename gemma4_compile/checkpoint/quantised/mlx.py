"""MLX: codes of every row with a scale for each group, and in its `affine` mode an offset."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.checkpoint.quantised.modules import (
    DAMAGED,
    Parts,
    Weights,
    by_module,
    check,
    floats,
    needed,
)
from gemma4_compile.checkpoint.quantised.packed import (
    BITS,
    E2M1,
    E4M3,
    E8M0,
    WORD_BITS,
    AlongRows,
    Numbers,
    bytes_as,
    integers,
)
from gemma4_compile.checkpoint.quantised.scaled import Scaled
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, computed
from gemma4_compile.errors import CheckpointError, ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.variants import WHOLE_HINT

KEY = "quantization"
_ENDS = ("scales", "biases")
_AFFINE = "affine"
_FLOATS: Mapping[str, tuple[int, Numbers, Numbers]] = {
    "mxfp4": (4, E2M1, E8M0),
    "mxfp8": (8, E4M3, E8M0),
    "nvfp4": (4, E2M1, E4M3),
}
"""Bits, numbers of codes and numbers of scales, by mode."""
_GROUPS = (16, 32, 64, 128)
_MAX_MODULES = 100_000


def read_weights(values: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> Weights:
    """Weights of a checkpoint of mlx-lm and mlx-vlm.

    Parameters
    ----------
    values : its `quantization`: group size, bits and mode, and those of modules that have others

    Raises
    ------
    CheckpointError, ConfigError
        Naming a tensor that does not fit the config, or what is not read.
    """
    if len(values) > _MAX_MODULES:
        raise ConfigError(f"config key `{KEY}`: more than {_MAX_MODULES} modules")
    whole = _Form(ConfigFields(values, KEY))
    modules, weights = by_module(tensors, _ENDS, ("weight",))
    for module, parts in modules.items():
        own = values.get(module)
        form = whole
        if isinstance(own, Mapping):
            form = _Form(ConfigFields({**_plain(values), **own}, f"{KEY}.{module}"))
        weights[f"{module}.weight"] = form.weight(module, parts)
    rounded = f"{whole.mode} codes in groups of {whole.group}" if modules else None
    return Weights(weights, rounded)


def _plain(values: Mapping[str, object]) -> Mapping[str, object]:
    return {name: values[name] for name in ("group_size", "bits", "mode") if name in values}


class _Form:
    """How a module is stored."""

    def __init__(self, fields: ConfigFields) -> None:
        self.group = fields.integer("group_size", 1, 1 << 16)
        if self.group not in _GROUPS:
            raise _unread(fields, "group_size", self.group)
        mode = fields.get("mode")
        self.mode = _AFFINE if mode is None else str(mode)
        if self.mode != _AFFINE and self.mode not in _FLOATS:
            raise _unread(fields, "mode", mode)
        self.bits = fields.integer("bits", 1, 16)
        if self.bits not in BITS or (self.mode != _AFFINE and self.bits != _FLOATS[self.mode][0]):
            raise _unread(fields, "bits", self.bits)

    def weight(self, module: str, parts: Parts) -> TensorInfo:
        stored = check(needed(module, parts, "weight"), ("U32",))
        if len(stored.shape) not in (2, 3) or 0 in stored.shape:
            raise CheckpointError(
                f"tensor `{stored.name}` has shape {stored.shape}, expected one or more matrices",
                hint=DAMAGED,
            )
        *front, words = stored.shape
        columns = words * WORD_BITS // self.bits
        shape = (*front, columns)
        blocks = (*front, columns // self.group)
        scales, offsets = needed(module, parts, "scales"), None
        if self.mode == _AFFINE:
            numbers = integers(self.bits, 0)
            floats(scales, blocks)
            offsets = floats(needed(module, parts, "biases"), blocks)
        else:
            _, numbers, of_scales = _FLOATS[self.mode]
            scales = bytes_as(check(scales, ("U8",), blocks), of_scales)
        codes = computed(stored.name, shape, AlongRows(stored, self.bits, numbers, columns))
        name = f"{module}.weight"
        return computed(name, shape, Scaled(codes, scales, 1, self.group, offsets=offsets))


def _unread(fields: ConfigFields, name: str, found: object) -> ConfigError:
    return ConfigError(
        f"config key `{fields.key(name)}`: {str(found)[:40]!r} of MLX is not read",
        hint=WHOLE_HINT,
    )

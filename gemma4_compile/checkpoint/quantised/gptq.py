"""GPTQ and AWQ: matrices as (inputs, outputs), integers packed along one of the two."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from gemma4_compile.checkpoint.quantised.modules import (
    Parts,
    Weights,
    by_module,
    check,
    floats,
    held_exactly,
    matrix,
    needed,
)
from gemma4_compile.checkpoint.quantised.packed import (
    BITS,
    WORD_BITS,
    OfInputs,
    OfOutputs,
    Transposed,
    integers,
)
from gemma4_compile.checkpoint.quantised.scaled import Scaled
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, computed
from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.variants import WHOLE_HINT

KEY = "quantization_config"
_ENDS = ("qweight", "qzeros", "scales", "g_idx")
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Places of columns in a word of AWQ's `gemm` files."""
_MAX_GROUP = 1 << 24


def read_gptq(values: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> Weights:
    """Weights of a checkpoint of AutoGPTQ, GPTQModel and optimum.

    Parameters
    ----------
    values : its `quantization_config`

    Raises
    ------
    CheckpointError, ConfigError
        Naming a tensor that does not fit the config, or what is not read.
    """
    fields, group = _checked_fields(values)
    bits = _bits(fields, BITS)
    form = fields.get("checkpoint_format")
    if form not in (None, "gptq", "gptq_v2"):
        raise _unread(fields, "checkpoint_format", form)
    # The first form stores a zero point less one, in the bits of a code.
    shift = 0 if form == "gptq_v2" else 1
    zeros = tuple(float((code + shift) % (1 << bits)) for code in range(1 << bits))
    modules, weights = by_module(tensors, _ENDS)
    for module, parts in modules.items():
        words = matrix(needed(module, parts, "qweight"), ("I32",))
        index = parts.get("g_idx")
        inputs, outputs = words.shape[0] * WORD_BITS // bits, words.shape[1]
        if index is not None:
            check(index, ("I32", "I64"), (inputs,))
        codes = computed(words.name, (outputs, inputs), OfInputs(words, bits, integers(bits, 0)))
        order = tuple(range(WORD_BITS // bits))
        name = f"{module}.weight"
        weights[name] = _matrix(name, parts, codes, group, bits, zeros, order, index)
    is_symmetric = fields.get("sym") is not False and not fields.get("desc_act")
    return Weights(weights, _rounded(bits, group, is_symmetric=is_symmetric) if modules else None)


def read_awq(values: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> Weights:
    """Weights of a checkpoint of AutoAWQ, in its form `gemm`.

    Raises
    ------
    CheckpointError, ConfigError
        As `read_gptq`.
    """
    fields, group = _checked_fields(values)
    bits = _bits(fields, (4,))
    version = fields.get("version")
    if version is not None and str(version).lower() != "gemm":
        raise _unread(fields, "version", version)
    modules, weights = by_module(tensors, _ENDS)
    numbers = integers(bits, 0)
    for module, parts in modules.items():
        words = matrix(needed(module, parts, "qweight"), ("I32",))
        shape = words.shape[1] * WORD_BITS // bits, words.shape[0]
        codes = computed(words.name, shape, OfOutputs(words, bits, numbers, _AWQ_ORDER))
        name = f"{module}.weight"
        weights[name] = _matrix(name, parts, codes, group, bits, numbers, _AWQ_ORDER, None)
    is_symmetric = fields.get("zero_point") is False
    return Weights(weights, _rounded(bits, group, is_symmetric=is_symmetric) if modules else None)


def _checked_fields(values: Mapping[str, object]) -> tuple[ConfigFields, int | None]:
    """The config, and the inputs of a group; None for whole rows."""
    names = {"w_bit": "bits", "q_group_size": "group_size"}  # of AWQ's own files
    fields = ConfigFields({names.get(key, key): value for key, value in values.items()}, KEY)
    others = fields.get("dynamic")  # by patterns; those of `-:` are whole
    if others and not (isinstance(others, Mapping) and all(map(_is_left_out, others))):
        raise _unread(fields, "dynamic", "other bits for some layers")
    group = fields.optional_integer("group_size", -1, _MAX_GROUP)
    if group == 0:
        raise ConfigError(f"config key `{KEY}.group_size`: expected inputs of a group, found 0")
    return fields, None if group == -1 else group


def _is_left_out(pattern: object) -> bool:
    return isinstance(pattern, str) and pattern.startswith("-:")


def _bits(fields: ConfigFields, known: tuple[int, ...]) -> int:
    bits = fields.integer("bits", 1, 16)
    if bits not in known:
        raise _unread(fields, "bits", bits)
    return bits


def _unread(fields: ConfigFields, name: str, found: object) -> ConfigError:
    return ConfigError(
        f"config key `{fields.key(name)}`: {str(found)[:40]!r} of GPTQ and AWQ is not read",
        hint=WHOLE_HINT,
    )


def _rounded(bits: int, group: int | None, *, is_symmetric: bool) -> str | None:
    if held_exactly(bits=bits, is_symmetric=is_symmetric, group=group):
        return None
    blocks = "by rows" if group is None else f"in groups of {group}"
    return f"{bits}-bit integers {blocks}" + ("" if is_symmetric else " with zero points")


def _matrix(
    name: str,
    parts: Parts,
    codes: TensorInfo,
    group: int | None,
    bits: int,
    zeros: tuple[float, ...],
    order: tuple[int, ...],
    index: TensorInfo | None,
) -> TensorInfo:
    """A weight (outputs, inputs) of codes; its scales and zero points are (groups, outputs)."""
    module = name.removesuffix(".weight")
    outputs, inputs = codes.shape
    groups = ceil(inputs / (group or inputs))
    scales = floats(needed(module, parts, "scales"), (groups, outputs))
    words = ceil(outputs * bits / WORD_BITS)
    packed = check(needed(module, parts, "qzeros"), ("I32",), (groups, words))
    scaled = Scaled(
        codes,
        computed(scales.name, (outputs, groups), Transposed(scales)),
        rows_each=1,
        columns_each=group or inputs,
        zeros=computed(packed.name, (outputs, groups), OfOutputs(packed, bits, zeros, order)),
        groups=index,
    )
    return computed(name, codes.shape, scaled)

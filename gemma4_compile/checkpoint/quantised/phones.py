"""Google's checkpoints for phones (`*-qat-mobile-transformers`): packed integers, and steps.

`weight` holds integers of 2 and 4 bits in bytes, the lowest bits first, or int8, and `weight_scale`
a scale a row; tables are called `embedding_quantized` and `embedding_scale`, with a scale a block
of columns. `input_activation_scale` and `output_activation_scale` of a module are the steps that
its inputs and outputs are rounded to; 0, or none, rounds nothing.

The bits of a module are a map of regular expressions in config.json. They are read off the tensors
instead: what a row has of bytes says the same, and a pattern of a stranger may take for ever. What
rounds keys and values (`k_cache_scale`) transformers does not read either.

References
----------
transformers 5.24.0, `integrations/gemma_quant.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from gemma4_compile.checkpoint.quantised.modules import (
    DAMAGED,
    Parts,
    Weights,
    by_module,
    check,
    floats,
    needed,
)
from gemma4_compile.checkpoint.quantised.packed import BITS, AlongRows, integers, signed
from gemma4_compile.checkpoint.quantised.scaled import Scaled
from gemma4_compile.checkpoint.quantised.steps import (
    StepTable,
    complete_steps,
    source_name,
    step_of,
)
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, computed
from gemma4_compile.errors import CheckpointError, ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.variants import WHOLE_HINT
from gemma4_compile.model_spec.parameters import INPUT_STEP, OUTPUT_STEP

_KEY = "quantization_config"
_TABLE, _TABLE_SCALE, _SCALE = "embedding_quantized", "embedding_scale", "weight_scale"
_ENDS = (_TABLE, _TABLE_SCALE, _SCALE, INPUT_STEP, OUTPUT_STEP)
_IGNORED = (".k_cache_scale", ".v_cache_scale")
_MAX_PATTERNS = 256
_BYTE = 8
_DEFAULTS: Mapping[str, object] = {"num_bits": 4, "quantize_embeddings": False}


def read_weights(
    values: Mapping[str, object], tensors: Mapping[str, TensorInfo], config: Mapping[str, object]
) -> Weights:
    """Weights and steps of the text decoder; what belongs to towers stays as it is.

    Parameters
    ----------
    values : `quantization_config`
    config : the whole `config.json`, whose sizes say how many columns a row of bytes stands for

    Raises
    ------
    CheckpointError, ConfigError
        Naming a tensor that does not fit the config, or what is not read.
    """
    _check_config(values)
    text = StepTable.of(config)
    modules, found = by_module(tensors, _ENDS, ("weight",))
    found = {name: tensor for name, tensor in found.items() if not name.endswith(_IGNORED)}
    for module, parts in modules.items():
        shape = text.shapes.get(source_name(f"{module}.weight"))
        if shape is None:
            found |= {tensor.name: tensor for tensor in parts.values()}
            continue
        found[f"{module}.weight"] = _weight(module, parts, shape)
        for end in (INPUT_STEP, OUTPUT_STEP):
            if end in parts:
                found[f"{module}.{end}"] = step_of(parts[end])
    complete_steps(found, text)
    return Weights(found)


def stored_form(tensor: TensorInfo) -> tuple[int, int] | None:
    """Bits of a matrix's integers and columns that share a step; None of a whole one."""
    scaled = tensor.decoder
    if not isinstance(scaled, Scaled) or not isinstance(scaled.codes.decoder, AlongRows):
        return None
    if scaled.rows_each > 1 or len(scaled.tensors) > len((scaled.codes, scaled.scales)):
        return None  # zero points and the like
    return scaled.codes.decoder.bits, scaled.columns_each


def _check_config(values: Mapping[str, object]) -> None:
    fields = ConfigFields(values, _KEY, _DEFAULTS)
    _bits(fields)
    if not fields.boolean("quantize_embeddings"):
        raise ConfigError(
            f"config key `{fields.key('quantize_embeddings')}`: expected true, as in the released "
            "checkpoints for phones",
            hint=WHOLE_HINT,
        )
    patterns = values.get("module_quant_configs")
    if patterns is None:
        return
    modules = fields.fields("module_quant_configs")
    if len(modules.names()) > _MAX_PATTERNS:
        raise ConfigError(
            f"config key `{fields.key('module_quant_configs')}`: more than {_MAX_PATTERNS} patterns"
        )
    for pattern in modules.names():
        _bits(modules.fields(pattern, _DEFAULTS))


def _bits(fields: ConfigFields) -> None:
    bits = fields.integer("num_bits", 1, 16)
    if bits not in BITS:
        raise ConfigError(
            f"config key `{fields.key('num_bits')}`: {bits} bits are not read, expected one of "
            f"{', '.join(map(str, BITS))}",
            hint=WHOLE_HINT,
        )


def _weight(module: str, parts: Parts, shape: tuple[int, ...]) -> TensorInfo:
    """The matrix of a module, of the shape that the model has."""
    is_table = _TABLE in parts or _TABLE_SCALE in parts
    stored = needed(module, parts, _TABLE if is_table else "weight")
    scales = needed(module, parts, _TABLE_SCALE if is_table else _SCALE)
    rows, columns = shape
    bits = _stored_bits(stored, rows, columns)
    numbers = signed(bits) if bits == _BYTE else integers(bits, -(1 << (bits - 1)))
    codes = computed(stored.name, shape, AlongRows(stored, bits, numbers, columns))
    blocks = scales.shape[1] if is_table and len(scales.shape) == 2 else 1
    if blocks < 1 or columns % blocks:
        raise CheckpointError(
            f"tensor `{scales.name}` in `{scales.path.name}` has shape {scales.shape}: {columns} "
            "columns are no whole number of its blocks",
            hint=DAMAGED,
        )
    floats(scales, (rows, blocks))
    return computed(f"{module}.weight", shape, Scaled(codes, scales, 1, columns // blocks))


def _stored_bits(stored: TensorInfo, rows: int, columns: int) -> int:
    """Bits of an integer, by the bytes of a row."""
    check(stored, ("U8", "I8"))
    for bits in BITS:
        dtype = "I8" if bits == _BYTE else "U8"
        if stored.dtype == dtype and stored.shape == (rows, ceil(columns * bits / _BYTE)):
            return bits
    raise CheckpointError(
        f"tensor `{stored.name}` in `{stored.path.name}` is {stored.dtype} of shape "
        f"{stored.shape}, expected {rows} rows of {columns} integers of 2 or 4 bits in U8 or of 8 "
        "bits in I8",
        hint="the checkpoint and its config.json do not fit together",
    )

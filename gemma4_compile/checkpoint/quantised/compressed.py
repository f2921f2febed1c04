"""compressed-tensors: the weights of Google's `*-qat-w4a16-ct`, Red Hat's and llm-compressor's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from gemma4_compile.checkpoint.quantised.compressed_scheme import Scheme, read_config
from gemma4_compile.checkpoint.quantised.compressed_targets import (
    INPUT_SCALE,
    OUTPUT_SCALE,
    Groups,
)
from gemma4_compile.checkpoint.quantised.modules import (
    DAMAGED,
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
    E2M1,
    E4M3,
    E8M0,
    AcrossRows,
    AlongRows,
    Numbers,
    bytes_as,
    index_of,
    integers,
    signed,
)
from gemma4_compile.checkpoint.quantised.scaled import Scaled
from gemma4_compile.checkpoint.quantised.steps import missing_step, step_of
from gemma4_compile.checkpoint.safetensors_file import (
    Float32Array,
    TensorInfo,
    computed,
    read_stored,
)
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.audio.component import AUDIO
from gemma4_compile.model_spec.parameters import INPUT_STEP, OUTPUT_STEP
from gemma4_compile.model_spec.vision.component import VISION

_ENDS = (
    *("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"),
    *("weight_global_scale", "input_scale", "input_zero_point", "input_global_scale"),
    *("output_scale", "output_zero_point"),  # also of keys and values, in older files
    *("self_attn.k_scale", "self_attn.v_scale", "self_attn.q_scale"),
    *("self_attn.k_zero_point", "self_attn.v_zero_point", "self_attn.q_zero_point"),
)
_STEPS = {INPUT_SCALE: INPUT_STEP, OUTPUT_SCALE: OUTPUT_STEP}
_TOWERS = (*VISION.prefixes, *AUDIO.prefixes)
"""They are not compiled where activations are rounded, so that what rounds theirs is of no use."""
_ZEROS = ("I8", "I32", "I64")
_FLOATS: Mapping[int, tuple[str, Numbers]] = {4: ("U8", E2M1), 8: ("F8_E4M3", E4M3)}
"""Floats by their bits: the dtype that holds them, and the numbers of their codes."""


def read_weights(values: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> Weights:
    """Weights of a checkpoint of compressed-tensors.

    Parameters
    ----------
    values : its `quantization_config`

    Raises
    ------
    CheckpointError, ConfigError
        Naming a tensor that does not fit the config, or what is not read.
    """
    config = read_config(values)
    modules, weights = by_module(tensors, _ENDS, ("weight",))
    rounded = None
    has_steps = any(_STEPS.keys() & parts.keys() for parts in modules.values())
    if config.groups is not None and tensors and not has_steps:
        raise CheckpointError(
            "config.json says that activations are rounded by fixed scales, and the checkpoint has "
            "no `input_scale` and no `output_scale`",
            hint=DAMAGED,
        )
    for module, parts in modules.items():
        if config.groups is not None:
            weights |= _steps(module, parts, config.groups)
        name = f"{module}.weight"
        if "weight_packed" not in parts and "weight" not in parts:
            if "weight_scale" in parts:
                needed(module, parts, "weight_packed")
            continue  # of activations or of the cache
        scheme, weights[name] = _weight(module, parts, config.schemes)
        if scheme is not None and rounded is None:
            is_exact = not scheme.is_float and held_exactly(
                bits=scheme.bits,
                is_symmetric=scheme.is_symmetric,
                group=None if "weight_g_idx" in parts and scheme.group is None else scheme.group,
            )
            if not is_exact or "weight_g_idx" in parts:
                rounded = scheme.text
    return Weights(weights, None if config.groups is not None else rounded, config.left_out)


def _steps(module: str, parts: Parts, groups: Groups) -> dict[str, TensorInfo]:
    """What the inputs and outputs of a module are rounded to, where its group rounds them."""
    group = groups.of(module)
    stored = parts.get("weight_packed", parts.get("weight"))
    is_packed = "weight_packed" in parts or "weight_scale" in parts
    if group is None and is_packed and stored is not None and not module.startswith(_TOWERS):
        raise CheckpointError(
            f"tensor `{stored.name}` in `{stored.path.name}` is quantised, and config.json has no "
            "group for it (`config_groups`, `ignore`): whether its inputs are rounded is not known",
            hint="the checkpoint and its config.json do not fit together",
        )
    found = {}
    for end in group.ends if group is not None else ():
        if end in parts:
            _check_no_zero_point(parts.get(end.replace("scale", "zero_point")))
            found[f"{module}.{_STEPS[end]}"] = step_of(parts[end])
        elif is_packed and stored is not None:
            found[f"{module}.{_STEPS[end]}"] = missing_step(f"{module}.{end}", stored)
    return found


def _check_no_zero_point(tensor: TensorInfo | None) -> None:
    """Refuse a zero point of activations, which configs that are read have none of."""
    if tensor is not None and index_of(check(tensor, _ZEROS, (), (1,))).any():
        raise CheckpointError(
            f"tensor `{tensor.name}` in `{tensor.path.name}` has a zero point, and config.json "
            "says that there are none (`symmetric`)",
            hint="the checkpoint and its config.json do not fit together",
        )


def _weight(
    module: str, parts: Parts, schemes: tuple[Scheme, ...]
) -> tuple[Scheme | None, TensorInfo]:
    """A module's weight, and how it is stored; None where it is not quantised."""
    if "weight_packed" not in parts:
        plain = parts["weight"]
        if "weight_scale" not in parts:
            return None, plain
        if plain.dtype not in ("I8", "F8_E4M3"):
            raise CheckpointError(
                f"tensor `{plain.name}` is {plain.dtype} with scales beside it: it is rounded "
                "while the model runs",
                hint="save the model compressed: `save_pretrained(FOLDER, save_compressed=True)` "
                "of llm-compressor",
            )
    stored = parts.get("weight_packed", parts.get("weight"))
    assert stored is not None
    scale = needed(module, parts, "weight_scale")
    fitting = [scheme for scheme in schemes if _fits(scheme, stored, parts)]
    of_words = [scheme for scheme in fitting if _has_words(scheme, stored, parts)]
    for scheme in of_words or fitting:  # of none it is said why
        rows, columns = _shape(scheme, module, stored, parts)
        if scale.shape in scheme.scale_shapes(rows, columns):
            return scheme, _computed(scheme, module, parts, stored, (rows, columns))
    known = " or ".join(scheme.text for scheme in schemes) or "none"
    raise CheckpointError(
        f"tensor `{stored.name}` of {stored.dtype} {stored.shape} with scales {scale.shape} is "
        f"none of what config.json says: {known}",
        hint="the checkpoint and its config.json do not fit together",
    )


def _fits(scheme: Scheme, stored: TensorInfo, parts: Parts) -> bool:
    dtype = "F8_E4M3" if scheme.is_float else "I8"
    if "weight_packed" in parts:
        dtype = "U8" if scheme.is_float else "I32"
    return (
        stored.dtype == dtype
        and (not scheme.is_float or _FLOATS[scheme.bits][0] == dtype)
        and (scheme.is_symmetric or "weight_zero_point" in parts)
    )


def _has_words(scheme: Scheme, stored: TensorInfo, parts: Parts) -> bool:
    """Return whether a weight may have the words of a scheme; of others than integers, any."""
    if stored.dtype != "I32" or "weight_shape" not in parts:
        return True
    declared = check(parts["weight_shape"], ("I64", "I32"), (2,))
    columns = int(index_of(declared)[1])
    return matrix(stored, ("I32",)).shape[1] == ceil(columns * scheme.bits / 32)


def _shape(scheme: Scheme, module: str, stored: TensorInfo, parts: Parts) -> tuple[int, int]:
    """Rows and columns of a weight."""
    matrix(stored, (stored.dtype,))
    rows, width = stored.shape
    if stored.dtype in ("I8", "F8_E4M3"):
        return rows, width
    if scheme.is_float:
        return rows, 2 * width
    declared = check(needed(module, parts, "weight_shape"), ("I64", "I32"), (2,))
    found = [int(size) for size in index_of(declared)]
    if found[0] != rows or found[1] < 1 or ceil(found[1] * scheme.bits / 32) != width:
        raise CheckpointError(
            f"tensor `{declared.name}` says {tuple(found)}, `{stored.name}` has {rows} rows of "
            f"{width} words with {scheme.bits} bits a number",
            hint=DAMAGED,
        )
    return rows, found[1]


def _computed(
    scheme: Scheme, module: str, parts: Parts, stored: TensorInfo, shape: tuple[int, int]
) -> TensorInfo:
    rows, columns = shape
    name = f"{module}.weight"
    codes = computed(stored.name, shape, AlongRows(stored, *_coding(scheme, stored), columns))
    scales = parts["weight_scale"]
    if scheme.is_float and scales.dtype in ("U8", "F8_E4M3", "F8_E8M0"):
        scales = bytes_as(scales, E4M3 if scales.dtype == "F8_E4M3" else E8M0)
    else:
        floats(scales)
    groups, divisor = parts.get("weight_g_idx"), parts.get("weight_global_scale")
    if groups is not None:
        check(groups, ("I32", "I64"), (columns,))
    if divisor is not None:
        floats(divisor, (), (1,))
    scaled = Scaled(
        codes,
        scales,
        rows_each=scheme.block_rows or rows,
        columns_each=scheme.group or columns,
        zeros=_zeros(scheme, parts, rows, scales),
        groups=groups,
        divisor=divisor,
    )
    return computed(name, shape, scaled)


def _coding(scheme: Scheme, stored: TensorInfo) -> tuple[int, Numbers]:
    """Bits of a code as it is stored, and what each stands for."""
    if stored.dtype == "I8":
        return 8, signed(8)  # whatever the number of levels
    if scheme.is_float:
        return scheme.bits, _FLOATS[scheme.bits][1]
    return scheme.bits, integers(scheme.bits, -(1 << (scheme.bits - 1)))


def _zeros(scheme: Scheme, parts: Parts, rows: int, scales: TensorInfo) -> TensorInfo | None:
    stored = parts.get("weight_zero_point")
    if stored is None or scheme.is_float:
        return None
    if scheme.is_symmetric:
        check(stored, ("I8", "I32", "I64"), scales.shape)
        return computed(stored.name, stored.shape, _OfSymmetric(stored))
    if stored.dtype == "I8":
        return bytes_as(check(stored, ("I8",), scales.shape), signed(8))
    words = ceil(rows * scheme.bits / 32)
    blocks = scales.shape[1] if len(scales.shape) > 1 else 1
    check(stored, ("I32",), (words, blocks))
    low = -(1 << (scheme.bits - 1))
    decoder = AcrossRows(stored, scheme.bits, integers(scheme.bits, low))
    return computed(stored.name, (rows, blocks), decoder)


@dataclass(frozen=True)
class _OfSymmetric:
    """Zero points of a symmetric scheme, which older files have: nothing but 0.

    With others the library takes them and transformers does not, so that either may be meant.
    """

    stored: TensorInfo

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.stored,)

    def read_rows(self, begin: int, end: int) -> Float32Array:
        values = read_stored(self.stored, begin, end)
        if values.any():
            raise CheckpointError(
                f"tensor `{self.stored.name}` in `{self.stored.path.name}` has zero points, and "
                "config.json says that there are none (`symmetric`)",
                hint="the checkpoint and its config.json do not fit together",
            )
        return np.zeros(values.shape, np.float32)

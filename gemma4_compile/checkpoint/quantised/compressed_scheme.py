"""The schemes of a compressed-tensors config: which storages of a weight it allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from gemma4_compile.checkpoint.quantised.compressed_targets import (
    INPUT_SCALE,
    OUTPUT_SCALE,
    Group,
    Groups,
    read_names,
)
from gemma4_compile.checkpoint.quantised.packed import BITS
from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.variants import QAT_HINT, WHOLE_HINT

KEY = "quantization_config"
_MAX_GROUPS = 256
_STATIC_BITS = 8
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_FORMATS = (
    *("pack-quantized", "int-quantized", "naive-quantized", "float-quantized"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision"),
    "dense",
)
_MAX_SIZE = 1 << 24
_DEFAULTS: Mapping[str, object] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "dynamic": False,
}


@dataclass(frozen=True)
class Scheme:
    """One way in which weights are stored.

    Attributes
    ----------
    group : columns of one scale; None for whole rows, or for the whole matrix
    block_rows : rows of one scale; None for the whole matrix
    """

    bits: int
    is_float: bool
    is_symmetric: bool
    group: int | None
    block_rows: int | None

    def scale_shapes(self, rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
        """Shapes that the scales of such a matrix may have."""
        if self.block_rows is None:
            return (), (1,), (1, 1)
        blocks = ceil(rows / self.block_rows), ceil(columns / (self.group or columns))
        return (blocks, blocks[:1]) if self.group is None else (blocks,)

    @property
    def text(self) -> str:
        """Its name in messages."""
        kind = "floats" if self.is_float else "integers"
        if self.block_rows is None:
            return f"{self.bits}-bit {kind} with one scale"
        if self.group is None:
            return f"{self.bits}-bit {kind} by rows"
        asymmetric = "" if self.is_symmetric else " with zero points"
        shape = f"{self.group}" if self.block_rows == 1 else f"{self.block_rows} x {self.group}"
        return f"{self.bits}-bit {kind} in groups of {shape}{asymmetric}"


@dataclass(frozen=True)
class CompressedConfig:
    """A config of compressed-tensors: schemes of weights, and what else it rounds.

    Attributes
    ----------
    left_out : what a package does not round
    groups : whose inputs and outputs a package rounds by scales of the checkpoint; None where it
        rounds none
    """

    schemes: tuple[Scheme, ...]
    left_out: tuple[str, ...]
    groups: Groups | None


def read_config(values: Mapping[str, object]) -> CompressedConfig:
    """Read `quantization_config` of compressed-tensors.

    Raises
    ------
    ConfigError
        Naming the key of a storage that is not read, or of a rounding that weights alone cannot
        stand for.
    """
    top = ConfigFields(values, KEY)
    _check_format(top, "format")
    for name in ("sparsity_config", "moe_sparsity_config"):
        sparse = top.get(name)
        if isinstance(sparse, Mapping) and sparse.get("format", "dense") != "dense":
            raise _unread(top.key(name), f"{sparse.get('format')!r}")
    if _has_transforms(top.get("transform_config")):
        raise _unread(top.key("transform_config"), "weights that are rotated while they run")
    groups = top.fields("config_groups")
    if len(groups.names()) > _MAX_GROUPS:
        raise ConfigError(
            f"config key `{KEY}.config_groups`: expected up to {_MAX_GROUPS} groups, found "
            f"{len(groups.names())}",
            hint=WHOLE_HINT,
        )
    schemes: list[Scheme] = []
    left_out: list[str] = []
    rounding: list[Group] = []
    for name in groups.names():
        group = groups.fields(name)
        others, ends = _activations(group)
        left_out += others
        rounding.append(Group(group.key("targets"), read_names(group, "targets"), ends))
        if group.get("weights") is not None:
            _check_format(group, "format")
            schemes.append(_scheme(group.fields("weights", _DEFAULTS)))
    if top.get("kv_cache_scheme") is not None:
        left_out.append("keys and values of the cache")
    rounded = None
    if any(group.ends for group in rounding):
        rounded = Groups(rounding, top.key("ignore"), read_names(top, "ignore"))
    return CompressedConfig(tuple(dict.fromkeys(schemes)), tuple(dict.fromkeys(left_out)), rounded)


def _check_format(fields: ConfigFields, name: str) -> None:
    value = fields.get(name)
    if value is not None and value not in _FORMATS:
        raise _unread(fields.key(name), repr(value)[:60])


def _unread(key: str, found: str) -> ConfigError:
    return ConfigError(
        f"config key `{key}`: {found} of compressed-tensors is not read", hint=WHOLE_HINT
    )


def _has_transforms(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value.get("config_groups"))


def _scheme(weights: ConfigFields) -> Scheme:
    is_float = weights.one_of("type", ("int", "float")) == "float"
    bits = weights.integer("num_bits", 1, 16)
    symmetric = weights.boolean("symmetric")
    group = weights.optional_integer("group_size", -1, _MAX_SIZE)
    strategy = weights.get("strategy")
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group < 1 else "group"
    elif strategy not in _STRATEGIES:
        raise _unread(weights.key("strategy"), repr(strategy)[:60])
    if bits not in ((4, 8) if is_float else BITS):
        raise _unread(weights.key("num_bits"), f"{bits} bits")
    if is_float and not symmetric:
        raise _unread(weights.key("symmetric"), "floats with zero points")
    rows: int | None = 1
    if strategy == "tensor":
        rows, group = None, None
    elif strategy == "channel":
        group = None
    elif strategy == "block":
        rows, group = (_size(item, weights) for item in weights.array("block_structure", 2))
    elif group is None or group < 1:
        raise ConfigError(
            f"config key `{weights.key('group_size')}`: expected columns of a group, found {group}",
            hint=WHOLE_HINT,
        )
    return Scheme(bits, is_float, symmetric, group, rows)


def _size(value: object, fields: ConfigFields) -> int:
    if type(value) is not int or not 1 <= value <= _MAX_SIZE:
        raise ConfigError(
            f"config key `{fields.key('block_structure')}`: expected rows and columns, found "
            f"{str(value)[:40]}",
            hint=WHOLE_HINT,
        )
    return value


def _activations(group: ConfigFields) -> tuple[list[str], tuple[str, ...]]:
    """What else a group rounds that a package does not, and the scales that it rounds by.

    ConfigError where the weights were trained for a rounding that is not done.
    """
    ends: tuple[str, ...] = ()
    if group.get("output_activations") is not None:
        _check_static(group.fields("output_activations", _DEFAULTS))
        ends = (OUTPUT_SCALE,)
    if group.get("input_activations") is None:
        return [], ends
    inputs = group.fields("input_activations", _DEFAULTS)
    kind = inputs.one_of("type", ("int", "float"))
    bits = inputs.integer("num_bits", 1, 16)
    if kind == "int" and inputs.get("dynamic") in (None, False):
        _check_static(inputs)
        return [], (INPUT_SCALE, *ends)
    if ends:
        raise ConfigError(
            f"config key `{inputs.key('dynamic')}`: the outputs of layers are rounded by fixed "
            "scales and their inputs by others",
            hint=QAT_HINT,
        )
    return [f"inputs of layers to {bits}-bit {kind}s"], ends


def _check_static(fields: ConfigFields) -> None:
    """Refuse a rounding of activations that is not one to 8 bits by one fixed scale."""
    strategy = fields.get("strategy")
    is_known = (
        fields.one_of("type", ("int", "float")) == "int"
        and fields.integer("num_bits", 1, 16) == _STATIC_BITS
        and fields.boolean("symmetric")
        and fields.get("dynamic") in (None, False)
        and strategy in (None, "tensor")
    )
    if not is_known:
        raise ConfigError(
            f"config key `{fields.key('strategy')}`: activations are rounded in another way than "
            "to 8 bits by one fixed scale, and the weights were trained for that",
            hint=QAT_HINT,
        )

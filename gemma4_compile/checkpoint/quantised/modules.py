"""What a quantised checkpoint holds, by module, with checks; and what a reader makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.checkpoint.safetensors_file import FLOAT_DTYPES, TensorInfo
from gemma4_compile.errors import CheckpointError

DAMAGED = "the checkpoint is incomplete or damaged: download it again"

Parts = Mapping[str, TensorInfo]
"""The tensors of a module, by the end of their names."""


@dataclass(frozen=True)
class Weights:
    """A quantised checkpoint's tensors by the names that they had before.

    Attributes
    ----------
    rounded : how the first weights are held that four bits of ours cannot hold exactly, such as
        `8-bit integers by channel`; None where there are none
    left_out : what the format rounds besides weights, such as `inputs of layers to 8 bits`
    """

    tensors: Mapping[str, TensorInfo]
    rounded: str | None = None
    left_out: tuple[str, ...] = ()


def held_exactly(*, bits: int, is_symmetric: bool, group: int | None) -> bool:
    """Return whether groups of 32 with 16 levels hold these integers; None are whole rows."""
    return bits <= 4 and is_symmetric and (group is None or group % 32 == 0)


def by_module(
    tensors: Mapping[str, TensorInfo], ends: Sequence[str], beside: Sequence[str] = ()
) -> tuple[dict[str, dict[str, TensorInfo]], dict[str, TensorInfo]]:
    """Tensors whose names have one of these ends, by module; and all others by name.

    Parameters
    ----------
    beside : ends of tensors that belong to a module only where it has others
    """
    modules: dict[str, dict[str, TensorInfo]] = {}
    for name, tensor in tensors.items():
        end = next((end for end in ends if name.endswith(f".{end}")), None)
        if end is not None:
            modules.setdefault(name.removesuffix(f".{end}"), {})[end] = tensor
    rest = {}
    for name, tensor in tensors.items():
        module, _, end = name.rpartition(".")
        if end in beside and module in modules:
            modules[module][end] = tensor
        elif not any(name.endswith(f".{end}") for end in ends):
            rest[name] = tensor
    return modules, rest


def needed(module: str, parts: Parts, end: str) -> TensorInfo:
    """A tensor of a module; CheckpointError if it is not there."""
    if end not in parts:
        there = next(iter(parts.values()))
        raise CheckpointError(
            f"tensor `{module}.{end}` is missing, `{there.name}` is there", hint=DAMAGED
        )
    return parts[end]


def check(tensor: TensorInfo, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> TensorInfo:
    """A tensor, if it has one of these dtypes and shapes.

    Raises
    ------
    CheckpointError
        Naming it, what it has and what was expected.
    """
    where = f"tensor `{tensor.name}` in `{tensor.path.name}`"
    if tensor.dtype not in dtypes:
        raise CheckpointError(
            f"{where} has dtype {tensor.dtype}, expected {' or '.join(dtypes)}", hint=DAMAGED
        )
    if shapes and tensor.shape not in shapes:
        raise CheckpointError(
            f"{where} has shape {tensor.shape}, expected {' or '.join(map(str, shapes))}",
            hint=DAMAGED,
        )
    return tensor


def matrix(tensor: TensorInfo, dtypes: Sequence[str]) -> TensorInfo:
    """A tensor, if it is a matrix with rows and columns, of one of these dtypes."""
    check(tensor, dtypes)
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise CheckpointError(
            f"tensor `{tensor.name}` in `{tensor.path.name}` has shape {tensor.shape}, expected a "
            "matrix",
            hint=DAMAGED,
        )
    return tensor


def floats(tensor: TensorInfo, *shapes: tuple[int, ...]) -> TensorInfo:
    """A tensor, if it has one of these shapes and holds floats that are read as they are."""
    return check(tensor, FLOAT_DTYPES, *shapes)

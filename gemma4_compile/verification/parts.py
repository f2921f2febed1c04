"""Parts of a decoder that a recipe stores in 4 bits or in 8, and the recipe file that says which.

A part is a kind of matrices in a third of the layers, or what stands outside of the layers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.quantization.recipe import FIXED_ROLES
from gemma4_compile.quantization.scheme import Scheme
from gemma4_compile.quantization.schemes import SCHEMES

FOUR, EIGHT = SCHEMES["q4f16_1"], SCHEMES["q8f16_1"]
_RUNS = 3  # of layers: first, middle and last ones differ
_LAYER = re.compile(r"layers\.(\d+)\.")
_PER_LAYER = "per-layer projections"  # of few bytes in all layers together


@dataclass(frozen=True)
class Part:
    """Matrices that have the same scheme.

    Attributes
    ----------
    names : of their parameters
    bytes : stored in 4 bits, and in 8
    """

    name: str
    names: tuple[str, ...]
    weights: int
    bytes: tuple[int, int]

    @property
    def more_bytes(self) -> int:
        """What 8 bits take besides those of 4."""
        return self.bytes[1] - self.bytes[0]


def parts_of(table: Sequence[Parameter], layers: int) -> tuple[Part, ...]:
    """The parts of a decoder: all matrices whose scheme is not fixed, each in one.

    Raises
    ------
    QuantizationError
        If a matrix does not fit its scheme.
    """
    found: defaultdict[tuple[str, int], list[Parameter]] = defaultdict(list)
    for parameter in table:
        if parameter.role in FIXED_ROLES:
            continue
        layer = _LAYER.match(parameter.name)
        if parameter.role is Role.PER_LAYER_LINEAR:
            found[_PER_LAYER, 0].append(parameter)
        elif layer:
            run = int(layer[1]) * _RUNS // layers
            found[parameter.name[layer.end() :], run].append(parameter)
        else:
            found[parameter.name, 0].append(parameter)
    return tuple(_part(kind, members) for (kind, _), members in found.items())


def _part(kind: str, members: Sequence[Parameter]) -> Part:
    layers = [layer[1] for one in members if (layer := _LAYER.match(one.name))]
    name = kind
    if layers and kind != _PER_LAYER:
        name = f"layers {layers[0]}-{layers[-1]}: {kind}"
    return Part(
        name=name,
        names=tuple(one.name for one in members),
        weights=sum(prod(one.shape) for one in members),
        bytes=(_stored(members, FOUR), _stored(members, EIGHT)),
    )


def _stored(members: Sequence[Parameter], scheme: Scheme) -> int:
    tensors = (scheme.tensors(one.name, "", one.shape) for one in members)
    return sum(tensor.nbytes for own in tensors for tensor in own)


def recipe_schemes(parts: Sequence[Part], eight: Collection[Part]) -> dict[str, str]:
    """Patterns and schemes of a recipe file: every matrix is named, whatever recipe it is put on.

    A kind is named as a whole by the scheme that most of its layers have, then the others, each by
    its name.
    """
    kinds: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for part in parts:
        for name in part.names:
            scheme = EIGHT if part in eight else FOUR
            kinds[_LAYER.sub("layers.*.", name, count=1)][name] = scheme.name
    schemes: dict[str, str] = {}
    for pattern, own in kinds.items():
        ((usual, _),) = Counter(own.values()).most_common(1)
        schemes[pattern] = usual
        schemes.update({name: scheme for name, scheme in own.items() if scheme != usual})
    return schemes

"""Groups of weights that a scheme holds exactly: found by their values, whoever made them so.

Weights that were trained for 4 bits (QAT) are stored as floats that lie on 16 levels a group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.quantization.recipe import TOWER_ROLES
from gemma4_compile.quantization.scheme import Scheme
from gemma4_compile.quantization.schemes import SCHEMES

NEARLY_ALL = 0.999
_SHOWN = 16
_LAYER = re.compile(r"\.\d+\.")
_OTHERS = (*TOWER_ROLES, Role.VECTOR, Role.ROUTER)


def four_bits(parameter: Parameter, scheme: Scheme, activation_dtype: str) -> Scheme | None:
    """The 4-bit scheme that a matrix of the text decoder could have; None where it has one."""
    smaller = SCHEMES["q4f16_1" if activation_dtype == "float16" else "q4f32_1"]
    has_groups = len(parameter.shape) > 1 and parameter.shape[-1] % smaller.group_size == 0
    if parameter.role in _OTHERS or scheme.name.startswith("q4") or not has_groups:
        return None
    return smaller


@dataclass(frozen=True)
class FourBits:
    """Groups of a matrix, and how many of them a 4-bit scheme would hold exactly."""

    scheme: str
    groups: int
    exact: int


@dataclass(frozen=True)
class Exact:
    """Groups of a parameter and how many of them are held exactly; what 4 bits would, if others."""

    groups: int
    exact: int
    four_bits: FourBits | None


def exact_lines(found: Sequence[tuple[str, str, Exact]]) -> list[str]:
    """Text of the report: by role, and what 4 bits would hold as well.

    Parameters
    ----------
    found : name and role of each parameter, with its groups
    """
    lines = []
    for role in dict.fromkeys(role for _, role, _ in found):
        of_role = [exact for _, name, exact in found if name == role and exact.groups]
        if of_role:
            exact, groups = (sum(one.exact for one in of_role), sum(one.groups for one in of_role))
            lines.append(f"{role:<44}exact: {exact:,} of {groups:,} groups")
    if lines:
        lines = ["", "held exactly, but for the rounding of a step", *lines]
    smaller = {
        name: exact.four_bits.scheme
        for name, _, exact in found
        if exact.four_bits and exact.four_bits.exact >= NEARLY_ALL * exact.four_bits.groups > 0
    }
    if smaller:
        schemes = _by_pattern(smaller, [name for name, _, _ in found])
        more = f"; and {len(schemes) - _SHOWN} others" if len(schemes) > _SHOWN else ""
        shown = json.dumps({"schemes": dict(list(schemes.items())[:_SHOWN])})
        lines += [
            "",
            "4 bits hold exactly what the recipe stores otherwise; smaller, with nothing lost, is",
            f"--recipe with {shown}{more}",
        ]
    return lines


def _by_pattern(schemes: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Schemes by patterns of all layers, where every layer is among them, and by names."""
    found = {}
    for name, scheme in schemes.items():
        pattern = _LAYER.sub(".*.", name)
        alike = [other for other in names if _LAYER.sub(".*.", other) == pattern]
        found[pattern if all(other in schemes for other in alike) else name] = scheme
    return found

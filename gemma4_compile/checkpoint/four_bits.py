"""Whether weights lie on 16 levels of a step a group, which `q4f16_1` holds exactly.

Those of checkpoints that were trained for 4 bits do (Google's `*-qat-q4_0-unquantized`, stored as
bfloat16), and those that have been in 4 bits with a scale before. A few rows tell: of weights that
lie anywhere no group is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gemma4_compile.model_spec.drafter.parameters import STEM
from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.quantization.convert import RowReader, read_parameter_rows
from gemma4_compile.quantization.groups import EXACT
from gemma4_compile.quantization.scheme import Float32Array
from gemma4_compile.quantization.schemes import SCHEMES

_SCHEME = SCHEMES["q4f16_1"]
_LEVELS = 8  # on one side of 0, and one fewer on the other
_MATRICES, _ROWS = 4, 4  # of each kind of matrix, and of each matrix in a run
_RUNS = 3  # of neighbouring rows: at its begin, middle and end
_LAYER = re.compile(r"\.\d+\.")


def share_on_levels(table: Sequence[Parameter], read_rows: RowReader) -> float:
    """The share of the groups that a recipe of 4 bits would hold exactly, by samples; 0 of none.

    Up to twelve rows of four matrices of each kind (q, k and v; o; gate and up; down; experts) of
    the text decoder are read, those of layers that are as far apart as they can be. Groups of zeros
    alone, and those that are not finite, do not count.

    Errors are those of `read_rows`.
    """
    exact = groups = 0
    for parameter in _sampled(table):
        for begin, end in _runs(parameter.shape[0]):
            found = _on_levels(read_parameter_rows(parameter, read_rows, begin, end))
            exact, groups = exact + found[0], groups + found[1]
    return exact / groups if groups else 0.0


def _sampled(table: Sequence[Parameter]) -> Iterator[Parameter]:
    kinds: dict[str, list[Parameter]] = {}
    for parameter in table:
        is_matrix = parameter.role in (Role.LINEAR, Role.EXPERTS)
        has_groups = is_matrix and parameter.shape[-1] % _SCHEME.group_size == 0
        if has_groups and not parameter.name.startswith(STEM):
            kinds.setdefault(_LAYER.sub(".*.", parameter.name), []).append(parameter)
    for found in kinds.values():
        places = np.linspace(0, len(found) - 1, _MATRICES).round().astype(int)
        yield from (found[place] for place in dict.fromkeys(places.tolist()))


def _runs(rows: int) -> Iterator[tuple[int, int]]:
    """Runs of rows [begin, end), which are all of a small matrix."""
    last = max(rows - _ROWS, 0)
    for begin in dict.fromkeys(last * run // (_RUNS - 1) for run in range(_RUNS)):
        yield begin, min(begin + _ROWS, rows)


def _on_levels(rows: Float32Array) -> tuple[int, int]:
    """How many groups lie on levels, and how many there are."""
    groups = rows.reshape(-1, _SCHEME.group_size).astype(np.float64)
    largest_sizes = np.abs(groups).max(axis=1)
    groups = groups[(largest_sizes > 0) & np.isfinite(largest_sizes)]
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=1)[:, None], axis=1)
    held = np.zeros(len(groups), np.bool_)
    for level in range(1, _LEVELS + 1):  # the one that the largest weight may have
        step = largest / level
        levels = np.rint(groups / step)
        off = np.abs(levels * step - groups) > EXACT * np.abs(groups)
        held |= ~off.any(axis=1) & (levels.min(axis=1) > -_LEVELS)
    return int(held.sum()), len(groups)

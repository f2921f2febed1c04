"""Every operator of a model with random inputs, to hold a target's kernels against it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx

from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.device_check.comparison import allowed_error, example_arguments, is_packed
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.operators.base import Operator, operator_of
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.rows import ONE, Chunk
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import TargetSpec
from tests.numerics.definitions import run

Array = npt.NDArray[Any]

CHUNK = 512
ROWS = 19  # of a prefill chunk: no multiple of any tile
BEFORE = 1200  # positions before it: every ring has wrapped
CAPACITY = 1300
UPDATED_TOKENS = 9
SIZE = re.compile(r"\d{2,}(\.\d+)?(e-?\d+)?")  # of no bits, no parts and no branches
SIZES = Sizes(ROWS, BEFORE, CAPACITY, CHUNK)


@dataclass(frozen=True)
class KernelCase:
    """An operator, its arguments, and what its definition makes of them."""

    operator: Operator
    args: tuple[Array | int, ...]
    changed: tuple[int, ...]
    expected: tuple[Array, ...]

    @property
    def arrays(self) -> list[Array]:
        """The arguments but the scalars."""
        return [arg for arg in self.args if not isinstance(arg, int)]

    @property
    def label(self) -> str:
        rows = getattr(self.operator, "rows", ONE)
        return f"{self.operator.name}-{'chunk' if isinstance(rows, Chunk) else 'one'}"


def operators(
    config: Gemma4Config, quant: str, spec: TargetSpec, part_bytes: int | None
) -> tuple[Operator, ...]:
    """The distinct operators of a library; matrices in parts of at most `part_bytes`."""
    recipe = RECIPES[quant]
    plan = storage_plan(parameter_table(config), recipe, part_bytes)
    module = build_module(config, recipe, spec, decoder_options(recipe, spec, CHUNK), plan)
    found: dict[Operator, None] = {}
    for _, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            operator = operator_of(func)
            if operator is not None:
                found[operator] = None
    return tuple(found)


def one_of_a_form(found: Iterable[Operator]) -> list[Operator]:
    """Of operators that differ in sizes alone the first: odd sizes and tiles have other tests."""
    forms: dict[str, Operator] = {}
    for operator in found:
        forms.setdefault(SIZE.sub("N", repr(operator)), operator)
    return list(forms.values())


def make_case(operator: Operator, seed: int, before: int = BEFORE, rows: int = ROWS) -> KernelCase:
    """Fill the arguments, run the definition, and note what it changed.

    `before` is the number of positions that stand before the operator's rows, `rows` theirs where
    the operator leaves it open.
    """
    sizes = replace(SIZES, rows=rows, before=before)
    args = example_arguments(operator, np.random.default_rng(seed), sizes)
    after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in args)
    run(operator, *after)
    changed = {
        index: new
        for index, (old, new) in enumerate(zip(args, after, strict=True))
        if not isinstance(new, int) and not np.array_equal(old, new)
    }
    return KernelCase(operator, args, tuple(changed), tuple(changed.values()))


def uncomputed_case(operator: Operator) -> KernelCase:
    """Arguments without what the definition makes of them: for kernels that are compiled alone."""
    args = example_arguments(operator, np.random.default_rng(0), SIZES)
    return KernelCase(operator, args, (len(args) - 1,), ())


def differences(cases: Sequence[KernelCase], results: Sequence[tuple[Array, ...]]) -> list[str]:
    """Results beyond the tolerance, a line each."""
    wrong = []
    for case, arrays in zip(cases, results, strict=True):
        params = case.operator.prim_func().params
        for position, expected, array in zip(case.changed, case.expected, arrays, strict=True):
            name = params[position].name
            if is_packed(case.operator, expected):
                moved = np.abs(array.view(np.int8).astype(int) - expected.view(np.int8))
                if moved.max() > 1 or moved.mean() > case.operator.moved_share():
                    wrong.append(
                        f"`{name}` of {case.operator}: {moved.sum()} of {moved.size} bytes"
                    )
                continue
            error = np.abs(array.astype(np.float64) - expected.astype(np.float64))
            if not (error <= allowed_error(case.operator, expected, name)).all():  # nor if a NaN
                wrong.append(f"`{name}` of {case.operator}: off by {error.max()}")
    return wrong

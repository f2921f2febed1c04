"""Expected outputs of some kernels for small known inputs, for a test on the user's device.

A browser's graphics driver may be wrong in ways that no feature or limit shows: subgroups smaller
than the kernels were made for, a miscompiled loop, 16-bit floats that overflow. The library carries
a few of its own kernels' inputs, as parameters of a generator (`known_inputs`), and samples of what
their operators' definitions make of them. `web/src/selftest/known_answers.ts` runs and compares
them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
import tvm
from tvm import tirx
from tvm.tirx.buffer import is_buffer_var

from gemma4_compile.device_check.comparison import error_bounds, is_packed
from gemma4_compile.device_check.definitions import run
from gemma4_compile.device_check.known_inputs import (
    KnownInput,
    encoded,
    hashes,
    sample_positions,
)
from gemma4_compile.device_check.known_roles import MATRIX_ROLES, ROLES, Role, rows_of
from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.activation_quantization import WORD as BYTES
from gemma4_compile.operators.base import Operator, operator_from
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.rows import CHUNK, ONE, Few
from gemma4_compile.operators.sampling import SampleTopP, SoftmaxPartials, TopPHistogram
from gemma4_compile.passes.kernel_launch import KernelLaunch, single_launches
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import has_subgroup_matrices
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.types import Array, JsonObject

VERSION = 1
MAX_BYTES = 48 << 20  # of one case's buffers: a browser makes and uploads them while a page loads

_ROWS = 19  # positions of a chunk: no multiple of any tile
_FEW_ROWS = 7  # of a step that checks guesses: more than a block of a matmul takes
_DRAWN_ROWS = 3  # of logits
_LAYER = 3  # whose per-layer inputs are read
_WRAPPED = 1200  # positions before a chunk in a ring, which has wrapped
_BEFORE, _CAPACITY = 150, 192  # in a full layer
_DRAWS = 64  # tried until a token is clear
_DRAW_MARGIN = 2.0**-21  # far above the rounding of sums, far below a token's share


def _sizes(operator: Operator, chunk: int) -> Sizes:
    ring = vars(operator).get("cache_rows") is not None
    most = _ROWS
    if isinstance(vars(operator).get("rows"), Few):
        most = _FEW_ROWS
    elif isinstance(operator, SoftmaxPartials | TopPHistogram | SampleTopP):
        most = _DRAWN_ROWS
    rows = min(most, chunk)  # a ring has room for a chunk, and not for more
    return Sizes(rows, _WRAPPED if ring else _BEFORE, _CAPACITY, rows)


@dataclass(frozen=True)
class _Example:
    """An operator with the sizes that it leaves open: the same in every library that has it."""

    operator: Operator
    sizes: Sizes

    @property
    def arguments(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and dtype of the buffers, in the order of the definition."""
        return [
            (param.name, tuple(map(self.sizes.of, param.shape)), str(param.dtype))
            for param in self.operator.prim_func().params
            if is_buffer_var(param)
        ]

    @property
    def nbytes(self) -> int:
        """Of all buffers."""
        return sum(KnownInput(dtype, shape).nbytes for _, shape, dtype in self.arguments)

    def input(self, name: str, shape: tuple[int, ...], dtype: str, seed: int) -> KnownInput:
        """Values of a buffer before the kernel runs."""
        data = self.operator.known_data(name, shape, self.sizes)
        if data is not None:
            return KnownInput(dtype, shape, data=tuple(data.ravel().tolist()))
        return KnownInput(dtype, shape, self.operator.known_spreads(name, dtype), seed)

    @property
    def scalar(self) -> int:
        """Value of an argument that is no buffer: of a matmul a layer that it has."""
        if not isinstance(self.operator, Linear):
            return self.operator.example_scalar(self.sizes)
        return min(_LAYER, self.operator.ple_width // self.operator.outputs - 1)


@dataclass(frozen=True)
class _Kernel(_Example):
    """A kernel of the library."""

    name: str

    @property
    def example(self) -> _Example:
        """Without what is the library's."""
        return _Example(self.operator, self.sizes)

    def scalars(self, func: tirx.PrimFunc) -> dict[str, int]:
        """Values of the scheduled function's scalars and symbolic sizes, by name."""
        values: dict[str, int] = {}
        for defined, param in zip(self.operator.prim_func().params, func.params, strict=True):
            if not is_buffer_var(param):
                values[param.name] = self.scalar
                continue
            for size, dim in zip(defined.shape, param.shape, strict=True):
                if isinstance(dim, tirx.Var):
                    values[dim.name] = self.sizes.of(size)
        return values


def choose(
    descriptions: Mapping[str, str], chunk: int, roles: Sequence[Role] = ROLES
) -> list[tuple[str, list[_Kernel]]]:
    """Titles and kernels of the cases: the kernel of the least cost of each role's variants.

    Parameters
    ----------
    descriptions : the library's kernels, as `kernel_descriptions` has them
    chunk : the package's longest prefill chunk
    roles : what is tested besides the draw of a token
    """
    operators = {name: operator_from(text) for name, text in sorted(descriptions.items())}
    kernels = [_Kernel(item, _sizes(item, chunk), name) for name, item in operators.items()]
    chosen: list[tuple[str, list[_Kernel]]] = []
    for role in roles:
        taken: dict[Hashable, _Kernel] = {}
        for kernel in kernels:
            operator = kernel.operator
            if operator.kind in role.kinds and role.accepts(operator):
                found = taken.setdefault(role.variant(operator), kernel)
                if role.cost(kernel.nbytes) < role.cost(found.nbytes):
                    taken[role.variant(operator)] = kernel
        chosen += [(role.title, [item]) for item in taken.values() if item.nbytes <= MAX_BYTES]
    for rows, title in ((ONE, "draw of a token"), (CHUNK, "draws of guesses")):
        draw = [
            next(
                (
                    k
                    for k in kernels
                    if isinstance(k.operator, kind) and rows_of(k.operator) == rows
                ),
                None,
            )
            for kind in (TopPHistogram, SampleTopP)
        ]
        if all(draw):
            chosen.append((title, [kernel for kernel in draw if kernel is not None]))
    return chosen


def _clear_draw(operator: SampleTopP, values: dict[str, Array]) -> dict[str, float]:
    """A uniform number and a top-p whose tokens do not hang on the rounding of sums."""
    names = [param.name for param in operator.prim_func().params]

    def token(uniform: float, top_p: float) -> tuple[int, ...]:
        values["uniform"][:], values["top_p"][:] = uniform, top_p
        run(operator, *(values[name] for name in names))
        return tuple(values["token"].tolist())

    for bits in hashes(0, _DRAWS):
        uniform, top_p = int(bits >> 24) / 256, 0.5 + int(bits & 127) / 512
        margins = (-_DRAW_MARGIN, 0.0, _DRAW_MARGIN)
        if len({token(uniform + a, top_p + b) for a in margins for b in margins}) == 1:
            return {"uniform": uniform, "top_p": top_p}
    raise LoweringError(
        f"no draw of {_DRAWS} from {operator.vocab} known probabilities is clear",
        hint="this is a mistake of gemma4-compile: please report it",
    )


def _result(operator: Operator, name: str, old: Array, new: Array) -> JsonObject | None:
    """Range that a kernel has changed in a buffer, samples of it, and their tolerance."""
    changed = np.flatnonzero(old.reshape(-1) != new.reshape(-1))
    if not changed.size:
        return None
    first, count = int(changed[0]), int(changed[-1] - changed[0]) + 1
    samples = new.reshape(-1)[list(sample_positions(first, count))]
    entry: JsonObject = {"name": name, "first": first, "count": count}
    if is_packed(operator, new):
        expected_moves = operator.moved_share() * samples.size * BYTES
        entry["moved"] = ceil(expected_moves + 4 * sqrt(expected_moves)) + 1
    else:
        entry["absolute"], entry["relative"] = error_bounds(operator, new, name)
    return {**entry, "expected": encoded(samples)}


@dataclass(frozen=True)
class _Answers:
    """Inputs and expected results of a case.

    Attributes
    ----------
    buffers : as the browser reads them, by name
    results : what changes, with the index of its buffer
    """

    buffers: Mapping[str, JsonObject]
    results: tuple[JsonObject, ...]


@lru_cache(maxsize=128)
def _answers(examples: tuple[_Example, ...], seed: int) -> _Answers:
    """Run the definitions, once for all libraries. Those of one case share buffers of one name."""
    inputs: dict[str, KnownInput] = {}
    for example in examples:
        for name, shape, dtype in example.arguments:
            made = example.input(name, shape, dtype, seed + len(inputs))
            inputs.setdefault(name, made)
    values = {name: known.array() for name, known in inputs.items()}
    places = {name: index for index, name in enumerate(inputs)}
    results: dict[str, JsonObject] = {}
    for example in examples:
        operator = example.operator
        if isinstance(operator, SampleTopP):
            for name, value in _clear_draw(operator, values).items():
                same = (value,) * values[name].size
                inputs[name] = KnownInput(inputs[name].dtype, inputs[name].shape, data=same)
                values[name] = inputs[name].array()
            values["token"] = inputs["token"].array()
        old = {name: values[name].copy() for name, _, _ in example.arguments}
        args = [
            values[param.name] if is_buffer_var(param) else example.scalar
            for param in operator.prim_func().params
        ]
        run(operator, *args)
        for name, before in old.items():
            result = _result(operator, name, before, values[name])
            if result is not None:
                results[name] = {"buffer": places[name], **result}
    buffers = {name: known.to_json() for name, known in inputs.items()}
    return _Answers(buffers, tuple(results.values()))


def _case(
    title: str,
    kernels: Sequence[_Kernel],
    launches: Mapping[str, KernelLaunch],
    module: tvm.IRModule,
    seed: int,
) -> JsonObject:
    """A case as the browser reads it."""
    answers = _answers(tuple(kernel.example for kernel in kernels), seed)
    places = {name: index for index, name in enumerate(answers.buffers)}
    steps: list[JsonObject] = []
    for kernel in kernels:
        func, launch = module[kernel.name], launches[kernel.name]
        scalars = kernel.scalars(func)
        own_name = {
            scheduled.name: param.name
            for param, scheduled in zip(
                kernel.operator.prim_func().params, func.params, strict=True
            )
            if is_buffer_var(param)
        }
        steps.append(
            {
                "kernel": launch.entry_point,
                "grid": list(launch.blocks(scalars)),
                "scalars": [scalars[name] for name in launch.scalars],
                "buffers": [places[own_name[name]] for name in launch.bindings],
            }
        )
    return {
        "title": title,
        "buffers": list(answers.buffers.values()),
        "launches": steps,
        "results": list(answers.results),
    }


def known_answers(
    module: tvm.IRModule, descriptions: Mapping[str, str], spec: TargetSpec, chunk: int
) -> JsonObject:
    """Inputs and expected results of some kernels, for the library's metadata.

    Parameters
    ----------
    module : lowered, with the scheduled kernels
    descriptions : the operators of the kernels, by name
    chunk : the package's longest prefill chunk
    """
    roles = (*ROLES, *MATRIX_ROLES) if has_subgroup_matrices(spec) else ROLES
    chosen = choose(descriptions, chunk, roles)
    names = [kernel.name for _, kernels in chosen for kernel in kernels]
    launches = single_launches(module, names, spec)
    cases = [
        _case(title, kernels, launches, module, seed=1000 * index)
        for index, (title, kernels) in enumerate(chosen)
    ]
    digest = hashlib.sha256(json.dumps(cases, sort_keys=True).encode())
    for name in names:
        digest.update(launches[name].text.encode())
    return {
        "version": VERSION,
        "digest": digest.hexdigest(),
        "limits": spec.limits,
        "subgroup_size": spec.simd_width,
        "cases": cases,
    }

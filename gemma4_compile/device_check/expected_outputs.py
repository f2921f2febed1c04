"""Outputs that kernels must give, for the self-test of a device, as a program.

`gemma4-chat --diagnose` runs this in a process of its own, because it needs the compiler, which the
chat does not load. A line of JSON on stdin describes a kernel; the line of JSON on stdout that
answers it names the files of its random arguments and of what the definition makes of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NotRequired, TypeAlias, TypedDict

import numpy as np
from tvm import tirx

from gemma4_compile.device_check.comparison import allowed_error, example_arguments, is_packed
from gemma4_compile.device_check.definitions import run
from gemma4_compile.operators.base import Operator, operator_from
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import Linear
from gemma4_compile.types import Array, JsonObject

_ROWS = 19  # no multiple of any tile
_BEFORE, _CAPACITY = 1200, 1300  # rings have wrapped
_Arguments: TypeAlias = "tuple[Array | int, ...]"

_last: dict[tuple[Operator, int, Sizes], tuple[_Arguments, _Arguments]] = {}
"""Of one kernel, which is asked of several numbers of rows, one after another."""


class Request(TypedDict):
    """A request to the program: a kernel's description and the sizes of its arguments."""

    operator: str
    seed: int
    chunk: int
    rows: NotRequired[int]


def answer(request: Request, folder: Path) -> JsonObject:
    """Compute one kernel's answer.

    Parameters
    ----------
    request : `operator`, its description; `seed`; `chunk`, the package's longest prefill chunk;
        `rows` of a chunk, by default a few. Those of a matmul repeat the few
    folder : where the files go

    Returns
    -------
    dict
        `args`: a file's name or an integer each; `changed`: by the index of an argument, the files
        of its values afterwards and of the largest error allowed; `packed`: the share of int8
        values in its words that may be one unit off, 0 if they are none.
    """
    try:
        operator = operator_from(request["operator"])
    except (KeyError, TypeError):  # of another version: its kind or its fields
        return {"unknown": True}
    sizes = Sizes(_rows_of(operator, request), _BEFORE, _CAPACITY, int(request["chunk"]))
    args, after = _computed(operator, request["seed"], sizes)
    if "rows" in request and isinstance(operator, Linear):
        args, after = (_repeated(operator, values, request["rows"]) for values in (args, after))
    names: list[str | int] = []
    changed: dict[str, JsonObject] = {}
    params = operator.prim_func().params
    for index, (param, old, new) in enumerate(zip(params, args, after, strict=True)):
        if isinstance(old, int) or isinstance(new, int):
            assert isinstance(old, int), "a scalar stays a scalar"
            names.append(old)
            continue
        names.append(_save(folder, f"{index}-before", old))
        if not np.array_equal(old, new):
            error = np.asarray(allowed_error(operator, new, param.name), np.float64)
            changed[str(index)] = {
                "expected": _save(folder, f"{index}-after", new),
                "allowed": _save(folder, f"{index}-allowed", error),
                "packed": operator.moved_share() if is_packed(operator, new) else 0,
            }
    return {"args": names, "changed": changed}


def _rows_of(operator: Operator, request: Request) -> int:
    """Rows that the definition is asked of: it takes as many times as long for each of a matmul."""
    few = min(_ROWS, int(request["chunk"]))
    return few if isinstance(operator, Linear) else request.get("rows", few)


def _computed(operator: Operator, seed: int, sizes: Sizes) -> tuple[_Arguments, _Arguments]:
    """Arguments before the definition runs, and after it; the last ones are kept."""
    key = operator, seed, sizes
    if key not in _last:
        _last.clear()
        args = example_arguments(operator, np.random.default_rng(seed), sizes)
        after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in args)
        run(operator, *after)
        _last[key] = args, after
    return _last[key]


def _repeated(operator: Operator, values: _Arguments, rows: int) -> _Arguments:
    """A matmul's arguments, of so many rows of x: those that there are, again and again."""
    params = operator.prim_func().params
    return tuple(
        value[np.arange(rows) % len(value)]
        if not isinstance(value, int) and isinstance(param.shape[0], tirx.Var)
        else value
        for param, value in zip(params, values, strict=True)
    )


def answers(requests: Iterable[str], folder: Path) -> Iterator[str]:
    """A line for each request's line."""
    for line in requests:
        yield json.dumps(answer(json.loads(line), folder))


def _save(folder: Path, name: str, values: Array) -> str:
    np.save(folder / f"{name}.npy", values)
    return f"{name}.npy"


if __name__ == "__main__":
    for text in answers(sys.stdin, Path(sys.argv[1])):
        print(text, flush=True)

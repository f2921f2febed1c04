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
from typing import TypedDict

import numpy as np

from gemma4_compile.device_check.comparison import allowed_error, example_arguments, is_packed
from gemma4_compile.device_check.definitions import run
from gemma4_compile.operators.base import operator_from
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.types import Array, JsonObject

_ROWS = 19  # no multiple of any tile
_BEFORE, _CAPACITY = 1200, 1300  # rings have wrapped


class Request(TypedDict):
    """A request to the program: a kernel's description and the sizes of its arguments."""

    operator: str
    seed: int
    chunk: int


def answer(request: Request, folder: Path) -> JsonObject:
    """Compute one kernel's answer.

    Parameters
    ----------
    request : `operator`, its description; `seed`; `chunk`, the package's longest prefill chunk
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
    chunk = int(request["chunk"])
    sizes = Sizes(min(_ROWS, chunk), _BEFORE, _CAPACITY, chunk)
    args = example_arguments(operator, np.random.default_rng(request["seed"]), sizes)
    after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in args)
    run(operator, *after)
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

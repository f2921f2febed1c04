"""What the calls of a step are, and how long each takes: an instrument of TVM's virtual machine."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi

from gemma4_compile.runtime.device.kernel_clock import KernelClock

OF_TVM = "-"  # in place of an operator's kind
SLIDING, FULL = "sliding", "full"
INPUT, OUTPUT = "input", "output"
"""What a kernel before the first layer, or after the last one, belongs to."""
_LAYER = re.compile(r"layers\.(\d+)\.")
_READS_ALL = re.compile(r"(?!.*expert)\w*linear")
"""Operators that read and write all of their arguments: of experts a few are read."""
_ON_HOST = re.compile(r"vm\.builtin\.|gemma4_|shape_func")
"""Calls that launch nothing: of the virtual machine, of the KV state, of shapes."""


@dataclass(frozen=True)
class Call:
    """One launch of a step.

    Attributes
    ----------
    place : number of the layer, or INPUT or OUTPUT
    nbytes : of all arguments, where each is read or written once; else None
    """

    kernel: str
    place: int | str
    nbytes: int | None


@dataclass(frozen=True)
class KernelTime:
    """All launches of a kernel in one step.

    Attributes
    ----------
    operator : kind of its operator
    places : what it belongs to, in words
    seconds : of all its calls
    nbytes : that all its calls read and write, where that is known
    """

    kernel: str
    operator: str
    places: str
    calls: int
    seconds: float
    nbytes: int | None


class StepTimes:
    """Instrument that times the kernels of a step; the step is run once first, to see its calls.

    It must not refer to the machine, which refers to it: such a cycle would never be freed.
    """

    def __init__(
        self, clock: KernelClock, kernels: Mapping[str, str], weights: Mapping[int, str]
    ) -> None:
        """Take what is known of a library.

        Parameters
        ----------
        kernels : descriptions of operators, JSON texts, by the kernel's name
        weights : names of weights by their addresses
        """
        self._clock, self._weights = clock, weights
        self._operators = {name: json.loads(text) for name, text in kernels.items()}
        self._calls: list[Call] = []
        self._seen = False
        self._runs: list[list[float]] = []

    def __call__(
        self, _function: object, name: str, before: bool, _result: object, *arguments: object
    ) -> int:
        """Take note of one call of the machine, which is made in any case."""
        if _ON_HOST.match(name):
            return 0
        if not before:
            self._clock.stop()
            return 0
        if not self._seen:
            tensors = [one for one in arguments if isinstance(one, tvm_ffi.Tensor)]
            self._calls.append(self._call(name, tensors))
        self._clock.start()
        return 0

    def end_step(self) -> None:
        """Keep the times of the step that has just been run; those of the first are left out."""
        seconds = self._clock.take()
        assert len(seconds) == len(self._calls), "steps of one kind launch the same kernels"
        if self._seen:
            self._runs.append(seconds)
        self._seen = True

    def table(self) -> tuple[KernelTime, ...]:
        """Times of one step, medians of those that were kept, longest first."""
        medians = [statistics.median(times) for times in zip(*self._runs, strict=True)]
        timed: dict[str, list[tuple[Call, float]]] = {}
        for call, seconds in zip(self._calls, medians, strict=True):
            timed.setdefault(call.kernel, []).append((call, seconds))
        found = (self._kernel_time(name, calls) for name, calls in timed.items())
        return tuple(sorted(found, key=lambda one: -one.seconds))

    def _call(self, name: str, tensors: Sequence[tvm_ffi.Tensor]) -> Call:
        place = self._calls[-1].place if self._calls else INPUT
        weights = [one for one in tensors if one.data_ptr() in self._weights]
        if weights:  # the largest is what the kernel is for: norms are of the layers around it
            largest = max(weights, key=_nbytes)
            layer = _LAYER.match(self._weights[largest.data_ptr()])
            if layer:
                place = int(layer[1])
            elif place != INPUT:
                place = OUTPUT
        whole = bool(_READS_ALL.fullmatch(str(self._operators.get(name, {}).get("kind", ""))))
        return Call(name, place, sum(map(_nbytes, tensors)) if whole else None)

    def _kernel_time(self, name: str, timed: Sequence[tuple[Call, float]]) -> KernelTime:
        sizes = [call.nbytes for call, _ in timed if call.nbytes is not None]
        kinds = self._layer_kinds()
        return KernelTime(
            name,
            str(self._operators.get(name, {}).get("kind", OF_TVM)),
            _in_words({call.place for call, _ in timed}, kinds),
            calls=len(timed),
            seconds=sum(seconds for _, seconds in timed),
            nbytes=sum(sizes) if len(sizes) == len(timed) else None,
        )

    def _layer_kinds(self) -> dict[int | str, str]:
        """SLIDING or FULL by the number of the layer: what its attention looks at."""
        operators = ((call.place, self._operators.get(call.kernel, {})) for call in self._calls)
        return {
            place: FULL if operator["window"] is None else SLIDING
            for place, operator in operators
            if "window" in operator
        }


def _nbytes(tensor: tvm_ffi.Tensor) -> int:
    return math.prod(int(size) for size in tensor.shape) * tvm_ffi.dtype(tensor.dtype).itemsize


def _in_words(places: set[int | str], kinds: Mapping[int | str, str]) -> str:
    """`3 sliding, 1 full`: how many layers of each kind, and what lies around them."""
    layers = Counter(kinds.get(place, "layers") for place in places if isinstance(place, int))
    words = [f"{count} {kind}" for kind, count in sorted(layers.items(), reverse=True)]
    return ", ".join([*(end for end in (INPUT, OUTPUT) if end in places), *words])

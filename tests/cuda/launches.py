"""What cases on the fake CUDA look at: the launches of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemma4_compile.runtime.device.cuda_runtime import CudaError, CudaRuntime
from tests.cuda.library import Launch, fake_cuda

CUDA = fake_cuda()
PROMPT = [2, 5, 7]


def half() -> float:
    return 0.5


def missing() -> CudaRuntime:
    raise CudaError("`libcudart.so.13` cannot be used: it is not there")


@dataclass(frozen=True)
class Step:
    """The launches of one call: by the host, and by a graph."""

    direct: list[Launch]
    replayed: list[Launch]


def launches_of(action: Any) -> Step:
    CUDA.clear()
    action()
    launches = CUDA.launches()
    return Step(
        [launch for launch in launches if not launch.from_graph],
        [launch for launch in launches if launch.from_graph],
    )


def intermediates(direct: list[Launch], replayed: list[Launch]) -> set[int]:
    """Where a graph has intermediate results, after a check that it is the same step.

    It has the same kernels on the same grids and tensors; only intermediates lie elsewhere.
    """
    assert [launch.kernel for launch in direct] == [launch.kernel for launch in replayed]
    moved: dict[int, int] = {}
    for one, other in zip(direct, replayed, strict=True):
        for before, now in zip(one.params, other.params, strict=True):
            assert moved.setdefault(now, before) == before, "two tensors became one"
    return {now for now, before in moved.items() if now != before}

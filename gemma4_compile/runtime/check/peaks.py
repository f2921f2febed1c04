"""What a device could do at most by what is published of it: memory bandwidth and arithmetic."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gemma4_compile.runtime.device.cuda_runtime import CudaError, CudaRuntime
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.system.apple import apple_chip, apple_gpu_cores

_TABLE = "chips.json"
_BY_APPLE = "apple"
# CUDA's numbers of a device's attributes (cudaDeviceAttr): clocks in kHz, the bus in bits.
_CLOCK, _PROCESSORS, _MEMORY_CLOCK, _BUS = 13, 16, 36, 37
_MAJOR, _MINOR = 75, 76
_TRANSFERS = 2  # of a memory of double data rate, a cycle
# Multiply-adds of float32 that a multiprocessor does a cycle, by compute capability (CUDA C++
# Programming Guide, throughput of native arithmetic instructions).
_PRODUCTS = {(7, 5): 64, (8, 0): 64}
_PRODUCTS_SINCE = 128


@dataclass(frozen=True)
class Chip:
    """An Apple chip in the table, with so many cores of its GPU.

    Attributes
    ----------
    gb_per_s : memory bandwidth, 10^9 bytes a second
    tflops : float32, 10^12 operations a second
    by_apple : that figure is Apple's own
    """

    name: str
    gpu_cores: int
    gb_per_s: float
    tflops: float
    by_apple: bool


@dataclass(frozen=True)
class Peaks:
    """What a device could do at most.

    Attributes
    ----------
    source : of the figures in words, or why there are none
    bytes_per_s : that its memory gives
    operations_per_s : of float32, a multiplication and an addition are two
    """

    source: str
    bytes_per_s: float | None = None
    operations_per_s: float | None = None


@cache
def chips() -> tuple[Chip, ...]:
    """All kinds of chips in the table; of one name, the one with fewest cores first."""
    text = (resources.files(__package__) / _TABLE).read_text("utf-8")
    return tuple(
        Chip(
            one["name"],
            cores,
            bandwidth,
            one["tflops"] * cores / one["gpu_cores"][-1],  # the same clock
            one["tflops_by"] == _BY_APPLE,
        )
        for one in json.loads(text)["chips"]
        for cores, bandwidth in zip(one["gpu_cores"], one["gb_per_s"], strict=True)
    )


def peaks_of(device: Device) -> Peaks:
    """What is published of the device that a package runs on; None for what is not known."""
    if device.kind.is_of_macs and not device.is_cpu:
        return peaks_of_chip(apple_chip(), apple_gpu_cores())
    if device.kind.has_driver:
        return peaks_of_gpu(_attribute)
    return Peaks("no shares: the tables have GPUs, and this is a processor")


def peaks_of_chip(name: str | None, cores: int | None) -> Peaks:
    """What is published of an Apple chip.

    Parameters
    ----------
    name : as macOS tells it
    cores : of its GPU; where that is unknown, those of the kind that has most
    """
    kinds = [chip for chip in chips() if chip.name == name]
    if not kinds:
        return Peaks(f"no shares: the table of chips lacks `{name or 'a chip without a name'}`")
    found = next((chip for chip in kinds if chip.gpu_cores == cores), None)
    if found is None and cores is not None:
        known = " and ".join(str(chip.gpu_cores) for chip in kinds)
        return Peaks(f"no shares: the table has `{name}` with {known} GPU cores, not {cores}")
    chip = found or kinds[-1]
    guess = "" if found else " (macOS does not tell how many it has)"
    by = "" if chip.by_apple else " (not Apple's figure)"
    return Peaks(
        f"shares of {chip.gb_per_s:,.0f} GB/s and {chip.tflops:.1f} float32 TFLOP/s{by}: "
        f"{chip.name}, {chip.gpu_cores} GPU cores{guess}",
        chip.gb_per_s * 1e9,
        chip.tflops * 1e12,
    )


def peaks_of_gpu(ask: Callable[[int], int | None]) -> Peaks:
    """What an NVIDIA GPU's driver tells of its clocks and units.

    Parameters
    ----------
    ask : returns a device attribute of CUDA by its number; None where it cannot be had
    """
    clock, processors, major, minor = map(ask, (_CLOCK, _PROCESSORS, _MAJOR, _MINOR))
    memory_clock, bus = ask(_MEMORY_CLOCK), ask(_BUS)
    bandwidth = operations = None
    if memory_clock and bus:
        bandwidth = 1e3 * memory_clock * _TRANSFERS * bus / 8
    if clock and processors and major is not None and minor is not None:
        products = _PRODUCTS.get((major, minor), _PRODUCTS_SINCE)
        operations = 2e3 * clock * processors * products
    told = [
        *([] if bandwidth is None else [f"{bandwidth / 1e9:,.0f} GB/s"]),
        *([] if operations is None else [f"{operations / 1e12:.1f} float32 TFLOP/s"]),
    ]
    if not told:
        return Peaks("no shares: the driver tells no clocks of this GPU")
    return Peaks(f"shares of {' and '.join(told)}, by the driver's clocks", bandwidth, operations)


def _attribute(number: int) -> int | None:
    value = ctypes.c_int()
    try:
        CudaRuntime().call("cudaDeviceGetAttribute", ctypes.byref(value), number, 0)
    except CudaError:
        return None
    return value.value

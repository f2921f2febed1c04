"""Kinds of devices: their numbers, and what the native runtime can do on each. No imports of ours.

What a device is able to do is asked of its kind; nothing asks for a kind by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class DeviceType(IntEnum):
    """DLPack's numbers of the devices that libraries run on."""

    CPU = 1
    CUDA = 2
    METAL = 8
    WEBGPU = 15

    @property
    def is_host(self) -> bool:
        """Return whether its memory is the host's, and kernels are loops of the host."""
        return self is DeviceType.CPU


TENSOR_OPERATIONS = "metal-tensor-operations"
"""What a library asks of a Mac beside Metal: Metal 4's tensor operations, in units of the GPU."""
BROWSER = DeviceType.WEBGPU.name.lower()
"""The device of a page; no process opens it."""


def is_of_pages(device: str) -> bool:
    """Return whether pages have the device, and no process of its own."""
    return device == BROWSER


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device that a process opens.

    Attributes
    ----------
    type : its number
    is_host : its memory is the host's, and there always is one
    has_driver : TVM's runtime for it needs NVIDIA's driver and CUDA's own library
    records_graphs : launches can be recorded once and issued together
    has_events : the runtime is able to time launches by events among them
    reads_beside : tokens reach the host while the next step runs
    is_of_macs : Macs have it, and nothing else
    draws : the next token is faster drawn there than from logits that the host reads
    reads_host : kernels read memory of the host over a bus, beside its own
    stages_uploads : TVM's runtime keeps what is uploaded apart for so many uploads without a wait
    has_launcher : libraries bring what drives it, in the place of TVM's runtime
    """

    type: DeviceType
    is_host: bool = False
    has_driver: bool = False
    records_graphs: bool = False
    has_events: bool = False
    reads_beside: bool = False
    is_of_macs: bool = False
    draws: bool = False
    reads_host: bool = False
    stages_uploads: bool = False
    has_launcher: bool = False


CPU = DeviceKind(DeviceType.CPU, is_host=True)
METAL = DeviceKind(DeviceType.METAL, is_of_macs=True, stages_uploads=True)
METAL_LAUNCHER = DeviceKind(
    DeviceType.METAL, is_of_macs=True, reads_beside=True, draws=True, has_launcher=True
)
"""The same with the launcher of its libraries."""
CUDA = DeviceKind(
    DeviceType.CUDA,
    has_driver=True,
    records_graphs=True,
    has_events=True,
    reads_beside=True,
    draws=True,
    reads_host=True,
)
NATIVE_KINDS: Mapping[str, DeviceKind] = {"cuda": CUDA, "metal": METAL, "cpu": CPU}
"""By DLPack's names of the devices; fastest first."""
WITH_LAUNCHER: Mapping[str, DeviceKind] = {"metal": METAL_LAUNCHER}
"""What they are with the launcher of their libraries, those that have one."""

"""Typical devices of each target for `--plan`: round numbers to plan with, in `devices.json`.

A browser reports limits in steps, and the client asks for bindings of 1 GiB or, where the adapter
has less, of 128 MiB; so for `webgpu` the table knows only these two. What counts in the end is what
the device of the user reports.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

DEVICES_FILE = Path(__file__).parent / "devices.json"


@dataclass(frozen=True)
class Requirements:
    """Requirements of a library, in the terms of `TargetSpec`.

    Attributes
    ----------
    subgroup_size : threads that the device's smallest subgroup must have; 0 if any will do
    """

    max_binding_bytes: int
    max_shared_memory_bytes: int
    max_threads_per_block: int
    max_storage_buffers: int
    features: tuple[str, ...]
    memory_bytes: int
    subgroup_size: int = 0


@dataclass(frozen=True)
class TypicalDevice:
    """A kind of device.

    Attributes
    ----------
    memory_bytes : what a model can take of its memory, None if unknown
    subgroup_size : threads of its smallest subgroup, 0 where there are none
    """

    name: str
    max_binding_bytes: int
    max_shared_memory_bytes: int
    max_threads_per_block: int
    max_storage_buffers: int
    features: tuple[str, ...]
    memory_bytes: int | None
    note: str
    subgroup_size: int = 0

    def lacks(self, asked: Requirements) -> tuple[str, ...]:
        """List what the device has too little of; empty if the library runs."""
        lacking = [f"no {feature}" for feature in asked.features if feature not in self.features]
        if "subgroups" in self.features and asked.subgroup_size > self.subgroup_size:
            size = self.subgroup_size
            lacking.append(f"subgroups of {asked.subgroup_size} threads: they may have {size}")
        if asked.max_binding_bytes > self.max_binding_bytes:
            lacking.append(f"bindings of {self.max_binding_bytes // 2**20} MiB")
        if asked.max_shared_memory_bytes > self.max_shared_memory_bytes:
            lacking.append(f"{self.max_shared_memory_bytes // 2**10} KiB of workgroup memory")
        if asked.max_threads_per_block > self.max_threads_per_block:
            lacking.append(f"{self.max_threads_per_block} threads in a workgroup")
        if asked.max_storage_buffers > self.max_storage_buffers:
            lacking.append(f"{self.max_storage_buffers} storage buffers")
        if self.memory_bytes is not None and asked.memory_bytes > self.memory_bytes:
            lacking.append(f"{self.memory_bytes / 2**30:.1f} GiB of memory")
        return tuple(lacking)


@lru_cache(maxsize=8)
def typical_devices(target: str) -> tuple[TypicalDevice, ...]:
    """The table of a target, from small to large; empty where nothing is to be planned."""
    entries = json.loads(DEVICES_FILE.read_text("utf-8")).get(target, [])
    return tuple(
        TypicalDevice(**{**entry, "features": tuple(entry["features"])}) for entry in entries
    )

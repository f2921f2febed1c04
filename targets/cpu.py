"""CPU of the machine that compiles: LLVM code for numeric tests and for chatting without a GPU."""

from __future__ import annotations

import platform

from gemma4_compile.targets.spec import UNLIMITED, DeviceType, TargetSpec

PROCESSORS = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}
"""Oldest processor that runs the library, by `platform.machine()`; elsewhere the plainest."""

DEFAULT = TargetSpec(
    name="cpu",
    profile="default",
    device_type=DeviceType.CPU,
    library_suffix=".so",
    max_threads_per_block=1,
    max_shared_memory_bytes=0,
    max_storage_buffers=UNLIMITED,
    max_binding_bytes=None,
    max_grid_dim=UNLIMITED,
    processor=PROCESSORS.get(platform.machine(), ""),
)

PROFILES = {spec.profile: spec for spec in (DEFAULT,)}

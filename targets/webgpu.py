"""WebGPU: what a browser allows."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.targets.spec import DeviceType, TargetSpec

DEFAULT = TargetSpec(
    name="webgpu",
    profile="default",
    device_type=DeviceType.WEBGPU,
    library_suffix=".wasm",
    max_threads_per_block=256,
    max_shared_memory_bytes=32 * 1024,
    max_storage_buffers=10,
    max_binding_bytes=128 * 1024 * 1024,
    max_grid_dim=65_535,
    host_triple="wasm32-unknown-unknown-wasm",
)
"""What the WebLLM client asks of every adapter."""

COMPAT = replace(
    DEFAULT, profile="compat", max_threads_per_block=128, max_shared_memory_bytes=16 * 1024
)
"""For adapters that offer WebGPU's own minimum."""

PROFILES = {spec.profile: spec for spec in (DEFAULT, COMPAT)}

"""What a CUDA device says of itself: its name, and memory in use."""

from __future__ import annotations

import ctypes
import subprocess


def device_memory_bytes(device: str) -> int | None:
    """Memory in use on a CUDA device, by all processes; None elsewhere."""
    if device != "cuda":
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    runtime = ctypes.CDLL("libcudart.so.13")
    if runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        return None
    return total.value - free.value


def device_name(device: str) -> str | None:
    """Name and driver of the GPU, as NVIDIA's tool reports them."""
    if device != "cuda":
        return None
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip().splitlines()[0]

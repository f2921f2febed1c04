"""The table of typical devices, and what one lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.targets import target_spec
from gemma4_compile.targets.devices import Requirements, TypicalDevice, typical_devices

NEEDS = Requirements(
    max_binding_bytes=128 << 20,
    max_shared_memory_bytes=32 << 10,
    max_threads_per_block=256,
    max_storage_buffers=10,
    features=("shader-f16",),
    memory_bytes=3 << 30,
)
DEVICE = TypicalDevice("d", 128 << 20, 32 << 10, 256, 10, ("shader-f16",), 3 << 30, "")


@pytest.mark.parametrize("target", ["webgpu", "metal"])
def test_table_is_whole(target: str) -> None:
    devices = typical_devices(target)
    assert len({device.name for device in devices}) == len(devices) >= 6
    for device in devices:
        assert device.note
        assert device.memory_bytes is None or device.memory_bytes > 1 << 30


def test_browsers_offer_what_the_client_can_get() -> None:
    for device in typical_devices("webgpu"):
        assert device.max_binding_bytes in (128 << 20, 1 << 30)
        assert set(device.features) <= {"shader-f16", "subgroups"}
        assert (device.subgroup_size > 0) == ("subgroups" in device.features)


def test_every_metal_device_takes_what_the_target_allows() -> None:
    spec = target_spec("metal")
    for device in typical_devices("metal"):
        assert device.max_binding_bytes == spec.max_binding_bytes
        assert device.max_shared_memory_bytes == spec.max_shared_memory_bytes
        assert device.max_threads_per_block >= spec.max_threads_per_block
        assert device.max_storage_buffers == spec.max_storage_buffers


def test_a_target_without_devices() -> None:
    assert typical_devices("cpu") == ()


def test_a_device_that_has_just_enough_lacks_nothing() -> None:
    assert DEVICE.lacks(NEEDS) == ()
    assert replace(DEVICE, memory_bytes=None).lacks(NEEDS) == ()


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (replace(DEVICE, features=()), "no shader-f16"),
        (replace(DEVICE, max_binding_bytes=(128 << 20) - 1), "bindings of 127 MiB"),
        (replace(DEVICE, max_shared_memory_bytes=16 << 10), "16 KiB of workgroup memory"),
        (replace(DEVICE, max_threads_per_block=128), "128 threads in a workgroup"),
        (replace(DEVICE, max_storage_buffers=8), "8 storage buffers"),
        (replace(DEVICE, memory_bytes=1 << 30), "1.0 GiB of memory"),
    ],
)
def test_what_is_lacking_is_named(device: TypicalDevice, text: str) -> None:
    assert device.lacks(NEEDS) == (text,)


def test_subgroups_that_are_too_small_are_named() -> None:
    device = replace(DEVICE, features=("shader-f16", "subgroups"), subgroup_size=8)
    needs = replace(NEEDS, features=("subgroups",), subgroup_size=16)
    assert device.lacks(needs) == ("subgroups of 16 threads: they may have 8",)
    assert device.lacks(replace(needs, subgroup_size=8)) == ()
    assert DEVICE.lacks(needs) == ("no subgroups",)

"""The emulated Metal device that all tests here run on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm

from gemma4_compile.runtime.device import device
from gemma4_compile.targets import TARGETS, cpu
from tests import packages
from tests.shared import made_once, shared_folder


@pytest.fixture(scope="session")
def metal_device() -> tvm.runtime.Device:
    """`metal:0`, on this machine's CPU."""
    from tests.metal import emulator  # not needed where these tests are skipped

    if sys.platform == "win32":
        pytest.skip("the emulated device needs POSIX's contexts and memory mapping")
    return emulator.install()


@contextmanager
def metal_target(**fields: Any) -> Iterator[None]:
    """`--target metal` with other fields of its limits, and host code of this machine."""
    from tests.metal import emulator

    load = device._load_tvm

    def load_others(name: str, mode: int) -> None:
        if name != "tvm_runtime_metal":
            load(name, mode)

    here = replace(
        TARGETS["metal"],
        limits={"default": replace(emulator.SPEC, **fields)},
        link=emulator.link,
        platform=cpu.this_machine,
    )
    with pytest.MonkeyPatch.context() as patch, emulator.fast_math():
        patch.setitem(TARGETS, "metal", here)
        patch.setattr(device, "_load_tvm", load_others)
        yield


@pytest.fixture(scope="module")
def metal_packages(metal_device: tvm.runtime.Device) -> Iterator[None]:
    """Packages as `--target metal` makes them, but for their host code, which is this machine's."""
    del metal_device  # stands where a Mac's process loads TVM's library for Metal
    with metal_target():
        yield


@pytest.fixture(scope="session")
def tiny_package(
    metal_device: tvm.runtime.Device, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """`tiny`, compiled as `metal_packages` does; to be opened under that."""
    del metal_device

    def make(folder: Path) -> None:
        with metal_target():
            packages.compile_package("tiny", "q4f16", folder, context_length=256, target="metal")

    return made_once(shared_folder(tmp_path_factory) / "tiny-metal", make)

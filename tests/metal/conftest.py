"""The emulated Metal device that all tests here run on."""

from __future__ import annotations

import sys

import pytest
import tvm


@pytest.fixture(scope="session")
def metal_device() -> tvm.runtime.Device:
    """`metal:0`, on this machine's CPU."""
    from tests.metal import emulator  # not needed where these tests are skipped

    if sys.platform == "win32":
        pytest.skip("the emulated device needs POSIX's contexts and memory mapping")
    return emulator.install()

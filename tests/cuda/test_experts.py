"""Experts in the host's memory: what lies where, what kernels are given, what fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda import fake


def test_memory_of_the_host_is_a_tensor_of_the_gpu(package: Path) -> None:
    fake.run("page_locked", package)


@pytest.mark.slow
def test_a_share_of_the_layers_has_its_experts_on_the_device(mixture: Path) -> None:
    assert "graph" not in fake.run("shares", mixture)


@pytest.mark.slow
def test_without_a_share_the_device_gets_what_it_has_room_for(mixture: Path) -> None:
    fake.run("by_room", mixture, GEMMA4_MEMORY_CHECK="0")


@pytest.mark.slow
def test_what_cannot_be_placed_is_refused(mixture: Path, package: Path) -> None:
    fake.run("experts_refused", mixture, str(package))

"""Which form of a step an engine takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.runtime.device.cuda_graph import SWITCH
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.steps import graphs_wanted
from tests.cuda import fake


def test_graphs_can_be_switched_off(package: Path) -> None:
    assert "graph" not in fake.run("switched_off", package, **{SWITCH: "0"})


def test_graphs_are_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert graphs_wanted(Device("cuda"), None)
    assert not graphs_wanted(Device("cuda"), False)
    assert not graphs_wanted(Device("metal"), None)
    assert not graphs_wanted(Device("cpu"), True)
    monkeypatch.setenv(SWITCH, "0")
    assert not graphs_wanted(Device("cuda"), None)


def test_the_next_step_is_launched_before_the_token_is_read(package: Path) -> None:
    fake.run("ahead", package)


def test_without_memory_to_write_to_tokens_are_waited_for(package: Path) -> None:
    log = fake.run("without_readback", package)
    assert log.startswith("each token is waited for before the next step is launched: cudaMalloc")


def test_without_cudas_runtime_the_host_issues_the_launches(package: Path) -> None:
    log = fake.run("without_runtime", package)
    assert "no CUDA graphs, so that the host issues each launch: `libcudart.so.13`" in log

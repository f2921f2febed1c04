"""CUDA graphs on a CUDA that has no GPU: what is launched, from where, and what stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.runtime.device.cuda_graph import NotRecordableError, Watch
from tests.cuda import fake
from tests.marks import slow_unless


def test_a_step_is_recorded_once_and_replayed(package: Path) -> None:
    assert "graph" not in fake.run("replay", package)


def test_what_a_graph_writes_is_its_own(package: Path) -> None:
    fake.run("own_memory", package)


def test_steps_of_several_sequences_have_a_graph_for_their_number(package: Path) -> None:
    assert "graph" not in fake.run("joint_steps", package)


def test_several_sequences_have_graphs_of_their_own(package: Path) -> None:
    assert "graph" not in fake.run("several_sequences", package)


def test_a_fork_keeps_its_logits_when_its_parent_goes_on(package: Path) -> None:
    assert "graph" not in fake.run("forked_logits", package)


def test_several_engines_have_graphs_of_their_own(package: Path) -> None:
    assert "graph" not in fake.run("several_engines", package)


@pytest.mark.parametrize(
    ("function", "said"),
    slow_unless(
        lambda function, _: function == "cudaGraphInstantiate",
        [
            ("cudaStreamCreateWithFlags", "cudaStreamCreateWithFlags: refused by the fake CUDA"),
            ("cudaStreamBeginCapture", "cudaStreamBeginCapture: refused by the fake CUDA"),
            ("cudaStreamEndCapture", "cudaStreamEndCapture: refused by the fake CUDA"),
            ("cudaGraphNodeGetType", "something else than kernels"),
            (
                "cudaGraphInstantiate",
                "cudaGraphInstantiate: refused by the fake CUDA (fakeOutOfMemory",
            ),
            ("cudaGraphLaunch", "cudaGraphLaunch: refused by the fake CUDA"),
        ],
    ),
)
def test_where_it_is_refused_the_host_issues_the_launches(
    package: Path, function: str, said: str
) -> None:
    log = fake.run("refused", package, function)
    assert log.startswith("no CUDA graph for the decode step, whose launches the host issues")
    assert said in log
    assert log.count("no CUDA graph") == 1


def test_a_graph_that_fails_later_costs_no_token(package: Path) -> None:
    assert "cudaGraphLaunch: refused" in fake.run("refused_later", package)


def test_a_graph_that_computes_something_else_is_not_used(package: Path) -> None:
    assert "gives other values than the plain launches" in fake.run("wrong_values", package)


def test_an_allocation_while_recording_is_no_harm(package: Path) -> None:
    fake.run("allocation", package)


def test_only_what_the_host_does_alone_may_be_between_launches() -> None:
    watch = Watch()
    told = r"calls `vm\.builtin\.to_device`"
    with pytest.raises(NotRecordableError, match=told), watch.recording():
        watch(None, "vm.builtin.to_device", True, None)
    with watch.recording():
        watch(None, "rms_norm", True, None)
        watch(None, "vm.builtin.alloc_storage", True, None)
        watch(None, "vm.builtin.null_value", True, None)
    watch(None, "vm.builtin.to_device", True, None)  # of another call

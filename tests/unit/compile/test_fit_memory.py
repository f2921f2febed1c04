"""Memory of choices, against the plan of each by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.compile.fit_memory import Memory
from gemma4_compile.compile.pipeline import plan_model
from gemma4_compile.compile.request import CompileRequest, compile_request
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.planning.fit import Choice
from gemma4_compile.planning.memory_parts import memory_parts

E2B = "gemma-4-E2B-it"


def request() -> CompileRequest:
    return compile_request(COMMAND.parse([E2B, "-o", "no such"]))


@pytest.mark.parametrize(
    "choice",
    [
        Choice("q4f16", ("default", "f16", "h200"), 8192, 512),
        Choice("q4f16", ("f16", "h200"), 8192, 512),
        Choice("q8f16", ("subgroups-4",), 2048, 64),
        Choice("q4f16s", ("default",), 1000, 100),
    ],
)
def test_a_package_takes_what_its_largest_library_takes(choice: Choice) -> None:
    memory = Memory(request(), Gemma4Config.from_preset(E2B))
    if choice.context not in (2048, 8192):  # one that is given
        memory = replace(memory, request=replace(request(), context_length=choice.context))
    plans, *_ = plan_model(memory.request_of(choice))
    assert [plan.name for plan in plans] == [*choice.libraries] == [*memory.plans(choice)]
    sizes = [sum(memory_parts(plan.numbers).values()) for plan in plans]
    assert memory.bytes_of(choice) == max(sizes)
    assert memory.fits(choice, max(sizes))
    assert not memory.fits(choice, max(sizes) - 1)


def test_what_cannot_be_built_fits_nowhere() -> None:
    memory = Memory(request(), Gemma4Config.from_preset(E2B))
    choice = Choice("q4f16", ("default",), 131_072, 6000)
    assert "--prefill-chunk 6000: one activation needs" in str(memory.problem(choice))
    assert not memory.fits(choice, 1 << 50)

"""What a plan opens: the config alone, with what a name or a drafter adds to it."""

from __future__ import annotations

from gemma4_compile.compile.planned_source import open_for_plan
from gemma4_compile.compile.request import CompileRequest, compile_request
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.options.process import without_warnings


def asked(*line: str) -> CompileRequest:
    return compile_request(COMMAND.parse([*line, "-o", "no such"]))


def test_no_tensor_is_opened() -> None:
    with open_for_plan(asked("tiny")) as source:
        assert source.checkpoint is None
        assert source.config.drafter is None


def test_a_drafter_is_in_the_config() -> None:
    with open_for_plan(asked("tiny", "--drafter", "tiny")) as source:
        assert source.config.drafter is not None


def test_a_name_stands_for_the_phone_checkpoint_of_its_size() -> None:
    mobile = asked("gemma-4-E2B-it", "--quant", "mobile")
    with without_warnings(), open_for_plan(mobile) as source:
        assert source.config.rounds_activations
    with open_for_plan(asked("gemma-4-E2B-it")) as source:
        assert not source.config.rounds_activations
